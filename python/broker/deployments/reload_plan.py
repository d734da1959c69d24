"""What a reload of the settings changes.

A reload is the exchange of gateways, replicas, owners and counters that new code comes in by, with the
settings as they are now: a process has one set of settings from its start to its end. What `broker up`
itself, Ray and the ingress have since their start, or all processes must agree on, keeps its value
(`at_start` in `Settings`).
"""

from dataclasses import dataclass, fields, replace

from broker.settings import SettingError, Settings, environment_name


@dataclass(frozen=True, slots=True)
class Reload:
    """What a reload comes to.

    Attributes:
        settings: that processes are started with from now on.
        applied: variables whose new values are among them.
        waiting: variables whose new values count from the next start on.
    """

    settings: Settings
    applied: tuple[str, ...]
    waiting: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people: no values, which may be secret."""
        told = [f"applied: {', '.join(self.applied)}"] if self.applied else []
        told += [f"{name}: takes effect at the next start of `broker up`" for name in self.waiting]
        return told or ["no setting has changed"]


def keep_from_start(loaded: Settings, present: Settings) -> Settings:
    """`loaded`, with the values of `present` where another one counts from the next start on.

    Some of these were made up at the start, such as the secret of the ingress.
    """
    kept = [entry.name for entry in fields(Settings) if entry.metadata["at_start"]]
    return replace(loaded, **{name: getattr(present, name) for name in kept})


def plan_reload(present: Settings, loaded: Settings) -> Reload:
    """What becomes of `present` settings when these have been `loaded`.

    Raises:
        SettingError: what may change now does not go with what stays until the next start.
    """
    changed = [
        entry for entry in fields(Settings) if getattr(loaded, entry.name) != getattr(present, entry.name)
    ]
    kept = [entry.name for entry in changed if entry.metadata["at_start"]]
    settings = keep_from_start(loaded, present)
    try:
        Settings.load(settings.to_environment())
    except SettingError as error:
        waiting = ", ".join(map(environment_name, kept))
        raise SettingError(f"{error} (with the values until the next start of {waiting})") from error
    applied = tuple(environment_name(entry.name) for entry in changed if entry.name not in kept)
    return Reload(settings, applied, tuple(map(environment_name, kept)))
