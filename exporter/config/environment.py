"""The environment: one variable for each option, and those of the same prefix that are none of ours."""

import re
from collections.abc import Iterator, Mapping

from exporter.config.document import FILE_VARIABLE, unknown
from exporter.config.option import PREFIX, Option
from exporter.config.options import OPTIONS
from exporter.errors import ConfigError

_OTHERS = re.compile(
    # The unit hands its arguments over in one; the tests have two.
    r"ARGS|RECORDINGS|NOTHING_SKIPPED"
    # Kubernetes sets these in every pod where there is a Service of the name cuda-mps-exporter.
    r"|SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)


def read_environment(environment: Mapping[str, str]) -> Iterator[tuple[Option, object]]:
    """The options that the environment sets; a variable that is empty sets nothing. ConfigError for unknown ones."""
    options = {option.variable: option for option in OPTIONS}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        if variable in options:
            if environment[variable]:
                yield options[variable], options[variable].kind.of_text(variable, environment[variable])
        elif not _OTHERS.fullmatch(variable.removeprefix(PREFIX)):
            raise ConfigError(unknown(variable, (*options, FILE_VARIABLE), "variable"))
