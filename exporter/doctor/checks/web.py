"""The web server: whether its port is free, and its configuration can be used."""

from collections.abc import Iterator

from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import quoted, shown


def port_taken(facts: Facts) -> Iterator[Found]:
    """Another program listens where the exporter is to."""
    for holder in facts.holders:
        if not holder.is_service:
            port = holder.address.rpartition(":")[2]
            yield Found(
                severity=Severity.ERROR,
                what=f"a program of UID {holder.uid} listens on {shown(holder.address)} already, and is not the "
                "exporter's service: that could not serve there",
                where=(shown(holder.address),),
                mend="See who it is, and end it; or serve elsewhere, and tell Prometheus",
                commands=(f"ss -ltnp 'sport = :{port}'", "cuda-mps-exporter serve --web.listen-address=:10678"),
            )


def web_config_unusable(facts: Facts) -> Iterator[Found]:
    """The web config file (TLS, passwords) cannot be used: the exporter does not start."""
    if facts.web_problem is not None:
        file = str(facts.config.web_config_file)
        yield Found(
            severity=Severity.ERROR,
            what=f"the web config file cannot be used: {shown(facts.web_problem)}",
            where=(shown(file),),
            mend="Mend it as the message says; this tries it out",
            commands=(f"cuda-mps-exporter serve --config.check --web.config.file={quoted(file)}",),
        )


CHECKS = (
    Check(
        port_taken,
        fine="the port is free, or the service's own",
        mend="`ss -ltnp`; another `--web.listen-address`",
        needs=(Area.PORTS,),
        doc="docs/web.md",
    ),
    Check(
        web_config_unusable,
        fine="the web configuration can be used",
        mend="`serve --config.check` says what is wrong",
        doc="docs/web.md",
    ),
)
