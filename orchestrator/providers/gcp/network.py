"""Firewall rules: whether Identity-Aware Proxy can reach port 22."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

#: Where IAP's tunnels come from (Google's documentation, "Using IAP for TCP forwarding").
IAP_RANGE = ipaddress.IPv4Network("35.235.240.0/20")
SSH_PORT = 22
_TCP = ("tcp", "6", "all")


def allows_iap(rules: Iterable[Any], network: str) -> bool:
    """Whether the rules of ``network`` let it in, as the service evaluates them.

    The lowest priority number decides, and deny before allow among equals; without a matching rule nothing is let in.
    Rules for tags or service accounts do not count: a machine of fcctl's has neither.
    """
    fitting = [rule for rule in rules if _fits(rule, network)]
    fitting.sort(key=lambda rule: (rule.priority, not rule.denied))
    return bool(fitting) and not fitting[0].denied


def _fits(rule: Any, network: str) -> bool:
    if rule.disabled or rule.direction == "EGRESS" or rule.target_tags or rule.target_service_accounts:
        return False
    if rule.network.rstrip("/").rsplit("/", 1)[-1] != network.rstrip("/").rsplit("/", 1)[-1]:
        return False
    return any(map(_covers_iap, rule.source_ranges)) and any(map(_covers_ssh, [*rule.allowed, *rule.denied]))


def _covers_iap(text: str) -> bool:
    try:
        given = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return isinstance(given, ipaddress.IPv4Network) and IAP_RANGE.subnet_of(given)


def _covers_ssh(entry: Any) -> bool:
    if entry.I_p_protocol.lower() not in _TCP:
        return False
    return not entry.ports or any(map(_holds_ssh, entry.ports))


def _holds_ssh(text: str) -> bool:
    first, _, end = text.partition("-")
    return first.isdecimal() and (end or first).isdecimal() and int(first) <= SSH_PORT <= int(end or first)
