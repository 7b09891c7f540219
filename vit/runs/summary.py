"""The scores of several runs together: mean and spread of each, as JSON and as a table."""

import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vit.runs.results import in_terminal, known_scores, read_results
from vit.runs.several import Member
from vit.support.files import replacing
from vit.support.markdown import markdown_table
from vit.training.description import Score

Scores = Mapping[Member, Mapping[Score, float]]


def write_summary(folder: Path, runs: Mapping[Member, Path], facts: Mapping[str, Any]) -> str:
    """Write ``results.json`` and ``summary.md`` of finished runs into the folder of their experiment.

    Args:
        folder: The folder.
        runs: The folder of each run.
        facts: What is known besides the results of the runs, such as the command.

    Returns:
        The scores as a table.
    """
    results = {member: read_results(of_run) for member, of_run in runs.items()}
    scores = {member: known_scores(of_run) for member, of_run in results.items()}
    first = next(iter(results.values()))
    members = [
        {"fold": member.fold, "seed": member.seed, "folder": str(runs[member])}
        | {name: of_run.get(name) for name in ("epochs", "steps", "seconds", "device", "precision")}
        | {score.name: value for score, value in scores[member].items()}
        for member, of_run in results.items()
    ]
    content = {name: first[name] for name in ("data", "objective", "parameters", "torch")} | dict(facts)
    content |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "scores": summary(scores), "runs": members}
    table = summary_table(scores)
    page = f"# {folder.name}\n\n{first['data']}, {first['objective']}, {content['date'][:10]}\n\n"
    page += f"    {facts['command']}\n\n{table}\n\n± is the sample standard deviation over the runs.\n"
    for name, text in (("results.json", json.dumps(content, indent=2) + "\n"), ("summary.md", page)):
        with replacing(folder / name) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    return table


def by_score(scores: Scores) -> dict[Score, list[float]]:
    """Return the values of each score, in the order of the runs that have it."""
    names = dict.fromkeys(score for of_run in scores.values() for score in of_run)
    return {score: [of_run[score] for of_run in scores.values() if score in of_run] for score in names}


def spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for one value.

    >>> spread([0.5, 0.7, 0.9])
    0.2
    """
    return statistics.stdev(values) if len(values) > 1 else None


def summary(scores: Scores) -> dict[str, dict[str, Any]]:
    """Return mean and spread of each score by its name, ready for JSON."""
    return {
        score.name: {
            "label": score.label,
            "better": score.better,
            "mean": statistics.mean(values),
            "standard_deviation": spread(values),
            "lowest": min(values),
            "highest": max(values),
            "runs": len(values),
        }
        for score, values in by_score(scores).items()
    }


def summary_table(scores: Scores) -> str:
    """Return the scores of each run, and their means with the sample standard deviation, as a table in Markdown."""
    rows = [
        {"run": member.name} | {score.label: in_terminal(score, value) for score, value in of_run.items()}
        for member, of_run in scores.items()
    ]
    means = {"run": "mean"}
    for score, values in by_score(scores).items():
        deviation = spread(values)
        means[score.label] = in_terminal(score, statistics.mean(values))
        if deviation is not None:
            means[score.label] += f" ± {in_terminal(score, deviation)}"
    return markdown_table([*rows, means], right=[score.label for score in by_score(scores)])
