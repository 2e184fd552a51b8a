from __future__ import annotations

from typing import Any

import pytest

from orchestrator.base.errors import ConfigError, NotFoundError
from orchestrator.machines.targets import LocalTarget, SshTarget
from orchestrator.money.caps import Budget
from orchestrator.money.prices.rates import usd_per_hour
from orchestrator.workspace import config
from tests.support.budgets import listed

WHOLE = """\
[project]
name = "flashcore"

[targets.box]
kind = "ssh"
host = "gpu-host"
env = { CUDA_HOME = "/opt/cuda" }

[targets.l4]
kind = "gcp"
project = "my-project"
instance = "dev"
zones = ["us-west1-c",
  "us-west1-a"]

[budget]
per_run_usd = 2.0
"""


def load(*texts: str, environ: dict[str, str] | None = None) -> config.Loaded:
    layers = [config.read_layer(text, "fcctl.toml" if i == 0 else f"file{i}") for i, text in enumerate(texts)]
    targets = sorted({*config.BUILT_IN_TARGETS, *(name for layer in layers for name in config.target_names(layer))})
    return config.combine([*layers, config.env_layer(environ or {}, targets)], default_name="folder")


L4 = '[targets.l4]\nkind = "gcp"\nproject = "my-project"\ninstance = "vm"\nzones = ["us-west1-c"]\n'


def test_the_whole_file() -> None:
    found = load(WHOLE).config
    assert found.project.name == "flashcore"
    assert found.targets["box"].host == "gpu-host"  # type: ignore[union-attr]
    assert found.targets["l4"].zones == ["us-west1-c", "us-west1-a"]  # type: ignore[union-attr]
    assert found.targets["local"] == LocalTarget(name="local")
    assert found.budget.per_run_usd == 2.0


def test_an_empty_file_is_a_configuration() -> None:
    found = load("").config
    assert found.project.name == "folder"
    assert (found.project.jobs, found.project.results) == ("jobs", "results")
    assert list(found.targets) == ["local", "sandbox"]


def test_the_stronger_layer_wins_and_is_named() -> None:
    found = load(
        "[budget]\nper_run_usd = 1\nper_day_usd = 1\nper_month_usd = 1\n",
        "\n[budget]\nper_day_usd = 2\nper_month_usd = 2\n",
        environ={"FCCTL_BUDGET_PER_MONTH_USD": "3", "FCCTL_BUDGET_PROJECT_USD": "3", "FCCTL_RUN_ID": "x"},
    )
    values = found.values()
    assert values["budget.per_run_usd"] == (1.0, "fcctl.toml:2")
    assert values["budget.per_day_usd"] == (2.0, "file1:3")
    assert values["budget.per_month_usd"] == (3.0, "FCCTL_BUDGET_PER_MONTH_USD")
    assert values["budget.project_usd"] == (3.0, "FCCTL_BUDGET_PROJECT_USD")
    assert values["project.jobs"] == ("jobs", "default")


def test_environment_reaches_targets_lists_and_names_with_hyphens() -> None:
    text = WHOLE + '[targets.l4-big]\nkind = "ssh"\nhost = "a"\n'
    found = load(
        text, environ={"FCCTL_TARGETS_L4_BIG_HOST": "b", "FCCTL_TARGETS_L4_ZONES": "us-west1-c, us-west4-a"}
    ).config
    assert found.targets["l4-big"].host == "b"  # type: ignore[union-attr]
    assert found.targets["l4"].zones == ["us-west1-c", "us-west4-a"]  # type: ignore[union-attr]


def test_a_target_of_another_kind_replaces_the_weaker_one_whole() -> None:
    found = load('[targets.box]\nkind = "ssh"\nhost = "a"\nport = 5\n', '[targets.box]\nkind = "local"\n')
    assert found.config.targets["box"] == LocalTarget(name="box")
    merged = load('[targets.box]\nkind = "ssh"\nhost = "a"\nport = 5\n', "[targets.box]\nport = 6\n")
    assert merged.config.targets["box"] == SshTarget(name="box", host="a", port=6)


def test_local_can_be_something_else() -> None:
    assert load('[targets.local]\nkind = "ssh"\nhost = "a"\n').config.targets["local"].kind == "ssh"
    assert load('[targets.local]\nroot = "/scratch/fcctl"\n').config.targets["local"].root == "/scratch/fcctl"


@pytest.mark.parametrize(
    ("text", "where", "words", "hint"),
    [
        ('[project]\nnam = "x"\n', "fcctl.toml:2", "unknown key 'nam' in project", "did you mean 'name'?"),
        ("\n[budgets]\nper_run_usd = 1\n", "fcctl.toml:2", "unknown section 'budgets'", "did you mean 'budget'?"),
        ("budget.per_run = 1\n", "fcctl.toml:1", "unknown key 'per_run' in budget", "did you mean 'per_run_usd'?"),
        ('[budget]\nper_run_usd = "much"\n', "fcctl.toml:2", "per_run_usd: expected a number, found 'much'", ""),
        ('[project]\njobs = "a"\nresults = "x\\u0000y"\n', "fcctl.toml:3", "a null character is not allowed", ""),
        ('[project]\nname = "x\\\\u0000"\n', "fcctl.toml:2", "invalid value", ""),
        ('[project]\nresults = "~nobody-has-this-name/x"\n', "fcctl.toml:2", "no user has that name", ""),
        ('[targets.a]\nkind = "ssh"\nhost = "x"\nidentity_file = "~nobody-has/x"', "fcctl.toml:4", "has that name", ""),
        ("\n[budget]\nper_run_usd = " + "9" * 5000, "fcctl.toml:3", "a number is too long", ""),
        ("[budget]\nper_run_usd = nan\n", "fcctl.toml:2", "finite number", ""),
        ("[budget]\nper_run_usd = inf\n", "fcctl.toml:2", "finite number", ""),
        ("[budget]\nper_run_usd = -1\n", "fcctl.toml:2", "expected a number above 0", ""),
        ('[targets.a]\nkind = "shh"\n', "fcctl.toml:2", "unknown value 'shh'", "did you mean 'ssh'?"),
        ('\n[targets.a]\nhost = "x"\n', "fcctl.toml:2", "missing key 'kind' in targets.a", "gcp, local, "),
        ('[targets]\na.kind = "ssh"\n', "fcctl.toml:2", "missing key 'host' in targets.a", ""),
        ('[targets.a]\nkind = "ssh"\nhost = "x"\nprot = 1', "fcctl.toml:4", "unknown key 'prot'", "mean 'port'?"),
        ('[targets.a]\nkind = "ssh"\nhost = "x"\nport = 0', "fcctl.toml:4", "expected at least 1", ""),
        ('[targets.a]\nkind = "ssh"\nhost = "-oProxyCommand=x"', "fcctl.toml:3", "invalid value", "must match"),
        ('[targets.a]\nkind = "local"\nname = "b"', "fcctl.toml:3", "unknown key 'name'", "the table name"),
        ('[targets."A b"]\nkind = "local"\n', "fcctl.toml:1", "is not a valid name", ""),
        ("targets = 1", "fcctl.toml:1", "expected tables", ""),
        ("[targets]\na = 1", "fcctl.toml:2", "expected a table", ""),
        ('project = "x"', "fcctl.toml:1", "expected a table", ""),
        (WHOLE.replace('"us-west1-a"', "7"), "fcctl.toml:13", "targets.l4.zones[1]", ""),
        (WHOLE.replace("CUDA_HOME = ", "A.B = "), "fcctl.toml:7", "targets.box.env.A", ""),
        ("[project\n", "fcctl.toml:1", "expected ']'", ""),
        ("a = 1\na = 2\n", "fcctl.toml:2", "overwrite", ""),
        ('[project]\nname = "x', "fcctl.toml:2", "", ""),
        ('[schedules.n]\njob = "bench"\ncron = "every day"', "fcctl.toml:3", "5 fields", ""),
        ('[schedules.n]\njob = "bench"\n', "fcctl.toml:1", "missing key 'cron'", ""),
        (f'{L4}provisioning = "flex"', "fcctl.toml:6", "unknown value 'flex'", "spot_then_on_demand"),
        (f"{L4}idle = {{gpu_below = 0}}", "fcctl.toml:6", "expected a number above 0", ""),
        (f"{L4}idle = {{below = 5}}", "fcctl.toml:6", "unknown key 'below' in targets.l4.idle", "gpu_below"),
        (f"{L4}idle = 5", "fcctl.toml:6", "targets.l4.idle", ""),
        (f'{L4}builder = "l5"', "fcctl.toml:6", "unknown target 'l5'", "l4"),
    ],
)
def test_mistakes_name_line_and_nearest(text: str, where: str, words: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert caught.value.message.startswith(f"{where}: "), caught.value.message
    assert words in caught.value.message
    assert hint in (caught.value.hint or "")


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load('[project]\nnam = "x"\n[targets.a]\nkind = "ssh"\n[budget]\nper_run_usd = 0\n')
    assert "3 problems" in caught.value.message
    for line in ("fcctl.toml:2", "fcctl.toml:3", "fcctl.toml:6"):
        assert line in caught.value.message


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("FCCTL_BUDGET_PER_RUN", "FCCTL_BUDGET_PER_RUN: unknown key 'per_run'"),
        ("FCCTL_TARGETS_NOWHERE_HOST", "FCCTL_TARGETS_NOWHERE_HOST: the name contains no known target"),
        ("FCCTL_BUDGET_PER_DAY_USD", "FCCTL_BUDGET_PER_DAY_USD: budget.per_day_usd"),
    ],
)
def test_mistakes_in_the_environment_name_the_variable(variable: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        load(WHOLE, environ={variable: "x"})


def test_unknown_target_names_the_nearest_and_all() -> None:
    with pytest.raises(NotFoundError) as caught:
        load(WHOLE).config.target("l5")
    assert caught.value.hint
    assert "did you mean 'l4'?" in caught.value.hint
    assert "box, l4, local" in caught.value.hint
    assert "ssh:HOST" in caught.value.hint
    with pytest.raises(NotFoundError) as caught:
        load(WHOLE).config.target("gpu-host")
    assert str(caught.value.hint).startswith("the target 'box' has this host name: --on box (known: ")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ssh:gpu.example.org", {"host": "gpu.example.org", "name": "gpu-example-org"}),
        ("ssh:me@box:2222", {"host": "box", "user": "me", "port": 2222}),
        ("ssh:[::1]:22", {"host": "::1", "port": 22}),
        ("ssh:" + "very-long-name-" * 4 + "x", {"name": "very-long-name-very-long"}),
    ],
)
def test_any_ssh_machine_can_be_named(name: str, expected: dict[str, Any]) -> None:
    target = load("").config.target(name)
    assert target.model_dump(include=set(expected)) == expected


@pytest.mark.parametrize("name", ["ssh:", "ssh:-oX=y", "ssh:a b", "ssh:a:99999", "ssh:-x@a", "ssh:a\nb"])
def test_what_names_no_machine(name: str) -> None:
    with pytest.raises(NotFoundError, match="invalid target"):
        load("").config.target(name)


def test_the_default_target_is_the_only_configured_one() -> None:
    one = '[targets.box]\nkind = "ssh"\nhost = "a"\n'
    assert load("").config.target_or_default(None).name == "local"
    assert load(one).config.target_or_default(None).name == "box"
    assert load(WHOLE).config.target_or_default(None).name == "local"
    assert load(one).config.target_or_default("local").name == "local"


def test_get_a_value_a_table_or_the_nearest_key() -> None:
    loaded = load(WHOLE)
    assert loaded.get("budget.per_run_usd") == 2.0
    assert loaded.get("budget.per_day_usd") is None
    assert loaded.get("project")["name"] == "flashcore"
    for key, hint in (("budget.foo", "known: idle, per_day_usd, "), ("budgt.per_run_usd", "'budget.per_run_usd'?")):
        with pytest.raises(NotFoundError) as unknown:
            loaded.get(key)
        assert hint in (unknown.value.hint or "")
    with pytest.raises(NotFoundError) as caught:
        loaded.get("budget.per_run")
    assert caught.value.hint == "did you mean 'budget.per_run_usd'?"
    with pytest.raises(NotFoundError):
        loaded.get("project.name.x")


def test_prices() -> None:
    found = load(WHOLE).config
    own = SshTarget(name="own", host="a", usd_per_hour=1.5)
    assert usd_per_hour(found.target("local"), Budget(usd_per_hour=2)) == 0
    assert usd_per_hour(found.target("box"), Budget()) == 0
    assert usd_per_hour(found.target("box"), Budget(usd_per_hour=2)) == 2
    assert usd_per_hour(own, Budget(usd_per_hour=2)) == 1.5
    assert usd_per_hour(found.target("l4"), listed()) == 0.706832


def test_the_address_of_a_webhook_is_never_shown_whole() -> None:
    text = '[notify]\nslack = "https://hooks.example.com/services/SECRET"\n'
    loaded = config.combine([config.read_layer(text, "fcctl.toml")], "x")
    assert loaded.config.notify.slack == "https://hooks.example.com/services/SECRET"
    shown = str(loaded.values()) + str(loaded.get("notify")) + str(loaded.get("notify.slack"))
    assert "SECRET" not in shown
    assert "hooks.example.com" in shown
