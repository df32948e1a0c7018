"""Columns that are missing, torn, unsorted or absurd, as no recorder writes them, break nothing."""

import json
import warnings
from random import Random

import numpy as np
import pytest
from made_up_run import findings_of
from random_jobs import faulty, healthy

from gpu_util_callback.diagnosis import Evidence, Run, judge

Columns = dict[str, np.ndarray]
NEEDED = ("step", "start_ns", "kind", "time_ns")  # without them there is no row


def damage_table(random: Random, table: Columns) -> Columns:
    column = random.choice([name for name in table if name not in NEEDED])
    rows = len(next(iter(table.values())))
    torn = {name: values.copy() for name, values in table.items()}
    numbers = torn[column].dtype.kind in "iuf"
    match random.randrange(5):
        case 0:
            del torn[column]
        case 1:
            order = np.random.default_rng(random.randrange(2**31)).permutation(rows)
            torn = {name: values[order] for name, values in torn.items()}
        case 2:
            torn = {name: np.concatenate([values, values]) for name, values in torn.items()}
        case 3 if numbers:
            torn[column][:: random.randint(1, 7)] = -1
        case _ if numbers:
            torn[column][random.randrange(rows)] = 2**60
    return torn


def damage_samples(random: Random, block: Columns) -> Columns:
    torn = dict(block)
    column = random.choice([name for name in block if name != "time_ns"])
    match random.randrange(3):
        case 0:
            torn[column] = np.full(len(block["time_ns"]), np.nan)
        case 1:
            torn["time_ns"] = block["time_ns"][::-1]
        case _:
            torn[column] = np.where(np.arange(len(block[column])) % 3, block[column], np.inf)
    return torn


def damage_facts(random: Random, facts: dict) -> dict:
    torn = json.loads(json.dumps(facts))
    torn[random.choice(["gpus", "fit", "model", "framework", "machine", "started_ns"])] = None
    for gpu in torn["gpus"] or []:
        del gpu[random.choice(sorted(gpu))]
    return torn


@pytest.mark.parametrize("seed", range(10))
def test_a_torn_recording_is_diagnosed_all_the_same(seed):
    random = Random(seed)
    job = healthy(seed) if seed % 2 else faulty(seed)[0]
    tables = {
        name: {column: np.array(values) for column, values in table.items()} for name, table in job.tables().items()
    }
    samples, facts = job.samples(), job.facts
    for _ in range(random.randint(1, 4)):
        name = random.choice(sorted(tables))
        tables[name] = damage_table(random, tables[name])
        if samples:
            group = random.choice(sorted(samples))
            samples[group] = damage_samples(random, samples[group])
        if random.random() < 0.3:
            facts = damage_facts(random, facts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evidence = Evidence(facts.get("started_ns"))
        evidence.add(tables, samples)
        found = judge(Run(facts, evidence, job.now, ended=True))
    json.dumps(found, allow_nan=False)
    for finding in findings_of(found):
        assert finding["lost_s"] is None or finding["lost_s"] > 0
