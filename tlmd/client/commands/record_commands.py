"""The commands about measured records: `tlmd records` and `tlmd measure`."""

from __future__ import annotations

import argparse
import json

from tlmd.client.commands.arguments import state_dir
from tlmd.data.errors import BadInput


def exchange(options: argparse.Namespace) -> int:
    from tlmd.data import config as configuration

    config = configuration.load(options.config)
    from tlmd.client.display.output_capture import captured_output
    from tlmd.data.state_dir import make_state_dir
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.space import tvm_alone

    cores = plan_cores(run=config.measure.run_cores or None)
    state = make_state_dir(state_dir(options))
    with captured_output(state / "logs" / "records.log"):
        tvm_alone.import_tvm()
        from tlmd.client.commands import interchange

        if options.action == "import":
            counts = interchange.import_records(options.path, options.target, len(cores.run), state)
        elif options.best:
            counts = interchange.export_best(options.path, state, options.least)
        else:
            counts = interchange.export_records(options.path, state)
    if options.json:
        print(json.dumps(counts))
        return 0
    skipped = f", {counts['skipped']} skipped" if counts.get("skipped") else ""
    print(f"{options.action}ed {counts['records']} records of {counts['tasks']} tasks{skipped}")
    return 0


def show(options: argparse.Namespace) -> int:
    from tlmd.client.commands import record_list

    state = state_dir(options)
    rows = record_list.newest_records(state, options.n, options.failed, options.task)
    print(json.dumps(rows, indent=1) if options.json else record_list.text(rows))
    return 0


def check(options: argparse.Namespace) -> int:
    from tlmd.records.store import RecordStore

    path = state_dir(options) / "records.sqlite"
    with RecordStore(path, read_only=True) as store:
        store.check_records()
        counts = store.counts()
    if options.json:
        print(json.dumps({"tasks": counts.tasks, "records": counts.records, "damaged": 0}))
    else:
        print(f"{counts.records} records of {counts.tasks} tasks, none damaged")
    return 0


def compact(options: argparse.Namespace) -> int:
    from tlmd.records.compaction import tasks_of_unfinished_jobs
    from tlmd.records.store import RecordStore

    state = state_dir(options)
    path = state / "records.sqlite"
    if not path.exists():
        raise BadInput(f"{state} holds no records; `tlmd tune` measures some")
    before = path.stat().st_size
    with RecordStore(path) as store:
        removed = store.compact(options.keep, tasks_of_unfinished_jobs(store, state))
        store.shrink()
        left = store.counts().records
    after = path.stat().st_size
    if options.json:
        print(json.dumps({"removed": removed, "records": left, "bytes": after}))
    else:
        sizes = f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB now"
        print(f"removed {removed} records, {left} are left; {sizes}")
    return 0


def measure(options: argparse.Namespace) -> int:
    from tlmd.data import config as configuration

    config = configuration.load(options.config)
    from tlmd.client.display.output_capture import captured_output
    from tlmd.space import tvm_alone

    state = state_dir(options)
    if not (state / "records.sqlite").exists():
        raise BadInput(f"{state} holds no records; `tlmd tune` measures some")
    with captured_output(state / "logs" / "measure.log"):
        tvm_alone.import_tvm()
        from tlmd.client.commands.measure_record import measure_record

        measured = measure_record(state, options.record, config)
    if options.json:
        print(json.dumps(measured.document(), indent=1))
    else:
        print(measured.text(options.verbose))
    return 0 if measured.outcome.ok else 1
