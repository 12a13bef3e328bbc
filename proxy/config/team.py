"""What must fit between the settings of a gateway for a team: upstreams, keys, gateways in front."""

from collections.abc import Collection, Sequence

from proxy.config.errors import refused_at, unknown
from proxy.config.groups.access import AccessGroup
from proxy.config.groups.upstream import UpstreamGroup
from proxy.config.keys import faults_in
from proxy.config.upstreams import upstream_faults


class TeamSettings(AccessGroup, UpstreamGroup):
    """The part of the settings that says where requests go, and for whom."""


def check_keys(settings: TeamSettings, presets: Collection[str]) -> None:
    """Raises ValidationError where keys, or gateways in front, cannot be meant so. `presets`: the names of all."""
    faults = list(faults_in(settings.keys, presets, [row.name for row in settings.upstream_rows]))
    if settings.keys and settings.auth == "passthrough":
        faults.append((("keys",), 'they do not count while `auth` is passthrough; set it to "keys" or "both"'))
    if settings.tenant_headers and not settings.trusted_proxies:
        faults.append((("tenant_headers",), "nobody may send them; name networks in `trusted_proxies`"))
    if faults:
        raise refused_at(faults)


def check_upstreams(settings: TeamSettings, ruled: Sequence[str | None], host: str) -> None:
    """Refuse what cannot be meant of upstreams. `ruled`: the one that each rule names."""
    pairs = {"anthropic": "anthropic_upstream", "default": "upstream"}
    own_names = {name: setting for name, setting in pairs.items() if getattr(settings, setting) is not None}
    named = [*ruled, *(name for key in settings.keys for name in key.upstreams)]
    faults = list(upstream_faults(settings.upstreams, own_names, named, host, settings.auth))
    names = [row.name for row in settings.upstream_rows]
    faults += [
        (("rules", at, "upstream"), unknown("upstream", name, names))
        for at, name in enumerate(ruled)
        if name is not None and name not in names
    ]
    if faults:
        raise refused_at(faults)
