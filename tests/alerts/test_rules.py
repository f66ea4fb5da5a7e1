"""The rules are valid, and each alert has the texts that an on-call engineer needs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards.answers import ANSWERS
from exporter.metrics.catalogue import CATALOGUE
from exporter.model.reason import with_known_parts
from exporter.parse.kernel_log import XIDS, exonerates
from exporter.report.problems import PROBLEMS, Definition, NodeProblem
from tests.alerts.files import PROMETHEUS, RULES, RUNBOOKS, SLO, UNIT_TESTS, Check, Rule, checks, read, rules, seconds
from tests.dashboards.queries import MODELS
from tests.tools import promtool

TARGETS_LABELS = {
    "job", "instance", "cluster", "node", "namespace", "pod", "container", "service", "endpoint", "prometheus",
    "location", "project_id",
}  # fmt: skip
"""Labels that scrape configurations, PodMonitors and managed Prometheus add to every series."""

COMMANDS = "ControlCommands"

SENTENCE_END = re.compile(r"(?<=[.;]) |\n\n|\n(?=[-\d|]|    \S)")
SUSPICION = re.compile("suspect|likely cause|likeliest|caused a fault", re.IGNORECASE)
DEMAND = re.compile(
    r"\b(end|ends|evict|ban|move|moving|kill|isolate|give) (it|them|the (workload|client|suspect|application))\b"
    r"|\bown (GPU|daemon)|caused a fault|risk high|high risk",
    re.IGNORECASE,
)
"""What no text may demand because of a suspicion."""

ANNOTATIONS = {"summary", "description", "runbook_url", "page_url", "dashboard_url"}

PARTS = ("## Meaning", "## Impact", "## Diagnosis", "## Mitigation")


def test_rules_are_valid() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_the_example_configuration_loads_the_rules() -> None:
    promtool("check", "config", PROMETHEUS)


def test_the_example_scrapes_as_often_as_the_page_states() -> None:
    stated = re.search(r"Scrape every (\d+) to (\d+) s\.", (RULES.parent.parent / "docs" / "alerting.md").read_text())
    assert stated
    interval = re.search(r"scrape_interval: (\d+)s", PROMETHEUS.read_text())
    assert interval
    assert int(stated[1]) <= int(interval[1]) <= int(stated[2])


@pytest.mark.systems
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.name)
def test_alerts_fire_as_their_tests_expect(path: Path) -> None:
    promtool("test", "rules", path)


def test_no_text_demands_to_end_or_move_a_workload_that_is_only_suspected() -> None:
    """A client can arrange that another one is suspected, as often as it likes."""
    project, often = RULES.parent.parent, NodeProblem.WORKLOAD_OFTEN_SUSPECTED.definition
    files = [*RUNBOOKS.glob("*.md"), *(project / "docs").glob("*.md"), *RULES.parent.glob("*.yml")]
    files += [*(project / "dashboards").glob("*.json"), project / "README.md"]
    texts = [path.read_text() for path in files]
    texts += [each.definition.remedy for each in PROBLEMS] + [answer.meaning for answer in ANSWERS]
    sentences = [sentence for text in texts for sentence in SENTENCE_END.split(text) if SUSPICION.search(sentence)]
    sentences += SENTENCE_END.split(often.remedy) + SENTENCE_END.split((RUNBOOKS / f"{often.alert}.md").read_text())
    for sentence in (" ".join(each.split()) for each in sentences):
        assert not DEMAND.search(sentence) or re.search(r"\b(Do not|no reason)\b", sentence), sentence


class TestAlert:
    """Tests of each alert."""

    def test_has_a_severity(self, subtests: pytest.Subtests) -> None:
        """Other severities would not be routed."""
        for rule in rules():
            with subtests.test(rule=rule):
                assert rule.alert.startswith("CudaMps")
                assert rule.severity in ("critical", "warning")

    def test_has_a_duration_or_a_range(self, subtests: pytest.Subtests) -> None:
        """A short condition causes no page."""
        for rule in rules():
            with subtests.test(rule=rule):
                looks_back = re.search(r"time\(\) -|increase\(|offset", rule.expr)
                assert rule.holds_for or looks_back

    def test_a_critical_alert_survives_a_restart_of_the_exporter(self, subtests: pytest.Subtests) -> None:
        """Except alerts about the exporter itself."""
        for rule in rules():
            with subtests.test(rule=rule):
                about_itself = rule.alert in ("CudaMpsExporterDown", "CudaMpsExporterStalled")
                of_the_past = set(re.findall(r"\[(7m)[]:]", rule.expr))
                goes_on = bool(of_the_past) and 'up{job="cuda-mps-exporter"} == 0' in rule.expr
                # The alert of an event goes on by its time.
                goes_on |= "last_over_time(cuda_mps_daemon_last_loss_timestamp_seconds" in rule.expr
                assert goes_on or rule.severity != "critical" or about_itself

    def test_summary_is_one_line_with_the_node(self, subtests: pytest.Subtests) -> None:
        """The line is the title of a ticket. If the target has a label `node`, that is the name."""
        for rule in rules():
            with subtests.test(rule=rule):
                assert re.search(r"\{\{ or \$labels\.node \$labels\.instance .*?\}\}", rule.annotations["summary"])
                assert re.fullmatch(r"[A-Z][^\n]+[^.\n]", rule.annotations["summary"])

    def test_texts_and_severity_are_those_of_the_catalogue(self, subtests: pytest.Subtests) -> None:
        """The description may add values of the moment between the meaning and the remedy."""
        for rule in rules():
            with subtests.test(rule=rule):
                problem = definition(rule)
                assert rule.annotations["summary"].replace(' "any node"', "") == templated(
                    with_known_parts(problem.summary, ())
                )
                description = rule.annotations["description"]
                assert description.startswith(problem.meaning)
                position = len(problem.meaning)
                for sentence in re.split(r"(?<=\.) (?=[A-Z])", problem.remedy):
                    position = description.index(sentence, position) + len(sentence)

    def test_runbook_starts_with_the_meaning_of_the_catalogue(self, subtests: pytest.Subtests) -> None:
        """In its own paragraph, if alerts of two severities share the page."""
        for rule in rules():
            with subtests.test(rule=rule):
                meaning, _ = re.split(r"^## Impact$", (RUNBOOKS / f"{rule.alert}.md").read_text(), flags=re.MULTILINE)
                paragraphs = [" ".join(each.split()) for each in meaning.split("\n\n")]
                assert any(each.startswith(definition(rule).meaning) for each in paragraphs[2:4])

    def test_preserves_the_labels_of_the_target(self, subtests: pytest.Subtests) -> None:
        """No expression aggregates or matches by a list of labels to preserve."""
        for rule in rules():
            with subtests.test(rule=rule):
                assert not re.search(r"\b(by|on)\s*\(", rule.expr)

    def test_selects_only_this_job(self, subtests: pytest.Subtests) -> None:
        """Series of other exporters do not match."""
        for rule in rules():
            with subtests.test(rule=rule):
                assert rule.expr.count('job="cuda-mps-exporter"') >= len(
                    re.findall(r"\b(?:cuda_mps[_:]\w+|ALERTS|up)\{", rule.expr)
                )
                assert not re.search(r"\bcuda_mps[_:]\w+\b(?!\{)", rule.expr)

    def test_runbook_has_the_remedy(self, subtests: pytest.Subtests) -> None:
        """A runbook has four parts. The third has commands, and the last is numbered."""
        for rule in rules():
            with subtests.test(rule=rule):
                assert rule.annotations["runbook_url"].endswith(f"/runbooks/{rule.alert}.md")
                text = (RUNBOOKS / f"{rule.alert}.md").read_text()
                assert text.startswith(f"# {rule.alert}\n")
                assert re.findall(r"^## .*", text, re.MULTILINE) == list(PARTS)
                diagnosis, mitigation = re.split(r"^## (?:Diagnosis|Mitigation)$", text, flags=re.MULTILINE)[1:]
                assert re.search(r"^    \S", diagnosis, re.MULTILINE)
                assert re.search(r"^1\. ", mitigation, re.MULTILINE)

    def test_links_to_a_dashboard_and_its_variables(self, subtests: pytest.Subtests) -> None:
        """The dashboard of the incident, if there is one, else that of the node."""
        for rule in rules():
            with subtests.test(rule=rule):
                link = re.fullmatch(r"http://localhost:3000/d/([\w-]+)\?(.*)", rule.annotations["dashboard_url"])
                assert link
                variables = {each["name"] for each in MODELS[link[1]]["templating"]["list"]}
                assert set(re.findall(r"var-(\w+)=", link[2])) <= variables
                assert (link[1] == "cuda-mps-incident") is ("Fault" in rule.alert)

    def test_links_to_the_pages_of_its_node_and_its_incident(self, subtests: pytest.Subtests) -> None:
        """An exporter that is down may have no target."""
        for rule in rules():
            with subtests.test(rule=rule):
                page = "http://{{ $labels.instance }}/"
                if rule.alert == "CudaMpsExporterDown":
                    page = f"{{{{ if $labels.instance }}}}{page}{{{{ end }}}}"
                assert rule.annotations["page_url"] == page
                of_incident = "Fault" in rule.alert or re.search("Daemon(Died|Down|Restarted)$", rule.alert)
                incident = rule.annotations.get("incident_url", "")
                assert incident.startswith(f"{page}incidents{{{{ with printf") if of_incident else not incident

    def test_is_tested_before_during_and_after_firing_and_without_cause(self, subtests: pytest.Subtests) -> None:
        """All labels and annotations of a firing alert are compared."""
        for rule in rules():
            with subtests.test(rule=rule):
                mine = [each for each in checks() if each.alert == rule.alert]
                firing = [each for each in mine if rule.severity in severities(each)]
                assert firing, "firing"
                assert any(is_quiet_around(each, mine, before=True) for each in firing), "not yet"
                assert any(is_quiet_around(each, mine, before=False) for each in firing), "resolved"
                absent = [each.expected for each in mine if each.group.endswith(": nothing is there but an exporter")]
                assert absent == [[]] or rule.alert == "CudaMpsExporterDown", "absent series"
                for each in firing:
                    assert all(set(one["exp_annotations"]) >= ANNOTATIONS for one in each.expected)


LABELS = {
    "node": "{{ or $labels.node $labels.instance }}",
    "workload": "{{ $labels.workload_kind }}/{{ $labels.workload }}",
    "gpu": (
        "{{ with printf `cuda_mps_gpu_info{job=%q, instance=%q, gpu=%q}` $labels.job $labels.instance $labels.gpu"
        " | query }}{{ with (first .) }}{{ .Labels.index }} ({{ .Labels.name }}, {{ .Labels.gpu }}){{ end }}"
        "{{ else }}{{ $labels.gpu }}{{ end }}"
    ),
}


def templated(summary: str) -> str:
    """Return a summary of the catalogue with an alert's labels in place of its placeholders."""
    return re.sub(r"\{(\w+)\}", lambda found: LABELS.get(found[1], f"{{{{ $labels.{found[1]} }}}}"), summary)


def definitions() -> Iterator[Definition]:
    return (problem.definition for problem in PROBLEMS)


def definition(rule: Rule) -> Definition:
    """Return what the catalogue of problems has of an alert and its severity."""
    (found,) = (each for each in definitions() if (each.alert, each.severity) == (rule.alert, rule.severity))
    return found


def severities(check: Check) -> set[str]:
    return {each["exp_labels"]["severity"] for each in check.expected}


def is_quiet_around(firing: Check, mine: list[Check], *, before: bool) -> bool:
    """Return whether the alert does not fire at another time of the same test."""
    return any(
        each.group == firing.group and not each.expected and (each.seconds < firing.seconds) == before for each in mine
    )


def test_critical_alerts_fire_without_data_until_the_exporter_is_reported_down() -> None:
    (down,) = (rule for rule in rules() if rule.alert == "CudaMpsExporterDown")
    assert seconds("7m") > seconds(down.holds_for) + 60


def test_no_rule_reads_what_a_rule_of_the_file_writes() -> None:
    """Such as vmalert, which provides it one evaluation late: one death would have two alerts."""
    assert {name for group in read(RULES)["groups"] for each in group["rules"] for name in each} <= {
        "alert", "expr", "for", "labels", "annotations",
    }  # fmt: skip
    assert [rule.id for rule in rules() if "ALERTS" in rule.expr] == []


def test_no_group_has_more_rules_than_managed_prometheus_takes() -> None:
    """Mimir and Amazon limit a group to 20 rules by default."""
    assert all(len(group["rules"]) <= 20 for group in read(RULES)["groups"])


def test_fires_without_any_exporter() -> None:
    """Only this alert fires for absent series."""
    down = [each for each in checks() if each.alert == "CudaMpsExporterDown" and each.expected]
    assert any("instance" not in one["exp_labels"] for each in down for one in each.expected)


def test_each_alert_of_the_catalogue_is_a_rule() -> None:
    defined = sorted((each.alert, each.severity.value) for each in definitions() if each.alert is not None)
    assert defined == sorted((rule.alert, rule.severity) for rule in rules())


def test_each_runbook_belongs_to_an_alert() -> None:
    """Except the table of commands, to which runbooks point."""
    names = {rule.alert for rule in (*rules(), *rules(SLO))}
    assert {page.stem for page in RUNBOOKS.iterdir()} - {COMMANDS} == names


OF_PROTOCOL_2 = re.compile(
    r"\b([gs]et_(default|active|device|server|client)_\w+|shutdown_server|terminate_client)\b|echo COMMAND"
)


def test_a_runbook_with_commands_of_protocol_2_names_protocol_3(subtests: pytest.Subtests) -> None:
    for page in sorted(RUNBOOKS.glob("CudaMps*.md")):
        with subtests.test(page=page):
            text = page.read_text()
            if OF_PROTOCOL_2.search(text):
                assert "rotocol 3" in text
                assert f"]({COMMANDS}.md)" in text


def test_the_xid_runbook_has_each_reported_number() -> None:
    rows = re.findall(r"^\| ([\d, to]+) \|", (RUNBOOKS / "CudaMpsHardwareXid.md").read_text(), re.MULTILINE)
    texts = {number for row in rows for part in row.split(", ") for number in numbers(part)}
    assert texts == {number for number in XIDS if exonerates(number)}


def numbers(part: str) -> range:
    first, _, last = part.partition(" to ")
    return range(int(first), int(last or first) + 1)


def test_no_label_conflicts_with_target_labels() -> None:
    """Otherwise Prometheus would rename the exporter's label (exported_…)."""
    assert {family.name: TARGETS_LABELS & set(family.labels) for family in CATALOGUE} == {
        family.name: set() for family in CATALOGUE
    }


class TestGuide:
    """docs/alerting.md."""

    TEXT = (RULES.parents[1] / "docs" / "alerting.md").read_text()

    def test_lists_each_alert_with_its_severities(self) -> None:
        """The guide lists no other alerts."""
        rows = re.findall(r"^\| `(CudaMps\w+)` \| ([^|]+) \|", self.TEXT, re.MULTILINE)
        texts = {(alert, severity) for alert, text in rows for severity in re.findall(r"critical|warning", text)}
        assert texts == {(rule.alert, rule.severity) for rule in (*rules(), *rules(SLO))}
