"""Replies, which the daemon echoes into its log line by line (measured, R580), and the items of lists."""

from exporter.parse import log_message as said
from exporter.parse.rule import NUMBER, UUID, Rule, noise, rule

RULES: tuple[Rule, ...] = (
    rule(NUMBER, said.Number),
    noise(
        r"ACTIVE|FAULT|INITIALIZING|\d+\.\d+|\d+[KMG]|",
        r"Server (?:\d+ )?not found!?",
        r'Unknown command ".*"',
        r"PID +ID +SERVER +DEVICE +NAMESPACE +COMMAND *",
        r"\d+ +\d+ +\d+ +GPU-\S+ +\d+ +.*",
        r"\[\d+\] [0-9a-f:.]+, .{1,200}",
        # device_query --csv: its columns may come to be more.
        r"Default|Server \d{1,10}",
        rf"\d{{1,4}} *,(?:[^,]{{0,80}},){{0,4}} *{UUID} *(?:,[^,]{{0,80}}){{0,8}}",
        r"Device Ordinal *,[A-Za-z ,]{0,200}",
        r"No default pinned memory limit set for the device!",
        r"Invalid percentage, expected between .{1,40}",
        r"set_default_device_pinned_mem_limit .{1,80}",
    ),
)
