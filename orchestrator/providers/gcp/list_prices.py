"""Google's list prices for what fcctl rents, in US dollars, without tax or discounts. Data only.

Read on 2026-11-21 from pricing.yml of github.com/Cyclenerd/google-cloud-pricing-cost-calculator, commit
dac31281f2a4575f0a8bff20ac04fc71a5ff2190, which was generated from Google's price catalogue on 2026-08-20. That file
lists g2-standard-4 and g2-standard-32; both have one L4, so that the two give the price of a vCPU with its 4 GiB and
that of the L4, and from these come the other sizes of the family (``how`` says which is which). Spot prices may change
every day. A newer table: ``fcctl cost prices --refresh``.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.money.prices.table import PriceTable, Rates

SOURCE = "github.com/Cyclenerd/google-cloud-pricing-cost-calculator pricing.yml@dac31281"
DATE = "2026-08-20"

# Dollars an hour for one vCPU with 4 GiB, one L4, the same on Spot; dollars a GiB and month for pd-balanced, pd-ssd,
# pd-standard, snapshots; dollars an hour for a static address that nothing uses.
_REGIONS = {
    "us-central1": Rates(0.036698004, 0.560040239, 0.022014, 0.3359, 0.1, 0.17, 0.04, 0.05, 0.01),
    "us-east1": Rates(0.036698004, 0.560040239, 0.022014, 0.3359, 0.1, 0.17, 0.04, 0.05, 0.01),
    "us-west1": Rates(0.036698004, 0.560040239, 0.022014, 0.3359, 0.1, 0.17, 0.04, 0.05, 0.01),
    "us-east4": Rates(0.036577837, 0.55820646, 0.01774, 0.2707, 0.11, 0.187, 0.044, 0.05, 0.011),
    "us-west4": Rates(0.04133296, 0.6307733, 0.024802, 0.3785, 0.11, 0.187, 0.044, 0.056, 0.011),
    "europe-west1": Rates(0.040408176, 0.6166603, 0.022514, 0.3435, 0.1, 0.17, 0.04, 0.05, 0.01),
    "europe-west2": Rates(0.041783835, 0.637653962, 0.02507, 0.3826, 0.12, 0.204, 0.048, 0.057, 0.012),
    "europe-west3": Rates(0.043249936, 0.660027786, 0.02595, 0.396, 0.12, 0.204, 0.048, 0.059, 0.012),
    "europe-west4": Rates(0.03857144, 0.588630286, 0.023144, 0.3532, 0.11, 0.187, 0.044, 0.053, 0.011),
    "europe-west6": Rates(0.048076948, 0.7834403, 0.028844, 0.4701, 0.13, 0.221, 0.052, 0.07, 0.01),
    "northamerica-northeast1": Rates(0.040408176, 0.6166603, 0.024246, 0.37, 0.11, 0.187, 0.044, 0.055, 0.011),
    "northamerica-northeast2": Rates(0.040408176, 0.6166603, 0.024246, 0.37, 0.11, 0.187, 0.044, 0.055, 0.011),
    "me-central2": Rates(0.058716812, 0.8960644, 0.03523, 0.5376, 0.16, 0.272, 0.064, 0.08, 0.016),
    "asia-east1": Rates(0.042492622, 0.6484706, 0.024362, 0.3718, 0.1, 0.17, 0.04, 0.05, 0.01),
    "asia-northeast1": Rates(0.047127576, 0.7192037, 0.028274, 0.4315, 0.13, 0.221, 0.052, 0.064, 0.015),
    "asia-northeast3": Rates(0.047127576, 0.7192037, 0.016166, 0.2467, 0.13, 0.221, 0.052, 0.064, 0.015),
    "asia-south1": Rates(0.038200909, 0.582975726, 0.018532, 0.2828, 0.12, 0.204, 0.048, 0.052, 0.012),
    "asia-southeast1": Rates(0.045274332, 0.6909216, 0.027168, 0.4146, 0.11, 0.187, 0.044, 0.061, 0.011),
}

# Dollars an hour for e2-standard-4, on demand and on Spot; another size costs as much for each of its vCPUs.
_E2 = {
    "us-central1": (0.13402284, 0.080424), "us-east1": (0.13402284, 0.080424), "us-west1": (0.13402284, 0.080424),
    "us-east4": (0.15094164, 0.08664), "us-west4": (0.15094164, 0.01904), "europe-west1": (0.14743092, 0.082664),
    "europe-west2": (0.17267112, 0.057336), "europe-west3": (0.17267112, 0.1036),
    "europe-west4": (0.14754408, 0.073856), "europe-west6": (0.17556532, 0.068504),
    "northamerica-northeast1": (0.14754408, 0.045952), "northamerica-northeast2": (0.14754408, 0.030976),
    "me-central2": (0.214436528, 0.128632), "asia-east1": (0.15518376, 0.076872),
    "asia-northeast1": (0.17193144, 0.103168), "asia-northeast3": (0.17193144, 0.071224),
    "asia-south1": (0.16096872, 0.096576), "asia-southeast1": (0.16533228, 0.090392),
}  # fmt: skip

LIST_PRICES = PriceTable(
    SOURCE,
    DATE,
    {
        region: replace(rates, e2_vcpu=_E2[region][0] / 4, spot_e2_vcpu=_E2[region][1] / 4)
        for region, rates in _REGIONS.items()
    },
)
