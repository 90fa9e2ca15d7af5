#!/usr/bin/env python3
"""State: what a C file keeps between calls. A struct says by its comment whose it is; what is kept by itself is listed here with its kind. What
belongs to a transaction or a statement stands in one struct of its file: two variables by themselves are refused."""
import re

from csource import Report, blank, line_of, read, root, sources

# session, worker, process: ends with it. transaction, statement: the file resets it, also after an error.
LOOSE = """
src/admin/join.c in_script statement
src/balancer/balancer.c next_round worker
src/balancer/balancer.c took worker
src/balancer/balancer.c due worker
src/balancer/balancer.c again worker
src/balance/chunk_load.c loads worker
src/balance/chunk_load.c begun worker
src/balance/chunk_load.c followed worker
src/balance/chunk_report.c due worker
src/balance/splitter.c by_load worker
src/balance/splitter.c oldest_running worker
src/balance/unreadable.c rows worker
src/catalog/identity.c label process
src/catalog/incarnation.c read_only worker
src/catalog/portable_types.c known process
src/catalog/relation.c known session
src/catalog/signing_key.c due worker
src/catalog/trigger_place.c setting process
src/clock/commit_times.c xids process
src/common/process_exit.c nsteps process
src/common/process_exit.c wanted process
src/common/process_exit.c last_steps process
src/common/shmem.c nmodules process
src/common/shmem.c my_slot process
src/common/shmem.c area process
src/common/spi.c uses statement
src/common/shmem.c looked_at process
src/config/add_node.c joined_transaction transaction
src/config/add_node.c joined_command transaction
src/config/announce.c announcements transaction
src/config/round_request.c asked transaction
src/control/call.c own_texts process
src/ddl/node_objects.c warned session
src/ddl/sequence_fetcher.c busy worker
src/ddl/sequence_fetcher.c pause worker
src/executor/cut_snapshot.c serial session
src/executor/load_tracking.c timed statement
src/executor/local_part.c local_plans_lru session
src/executor/local_statement.c running statement
src/executor/ownership.c owned_function session
src/executor/ownership.c require_owned_function session
src/executor/shard_run.c last_explained session
src/executor/source_position.c statements statement
src/failover/outdated_placements.c seen worker
src/load/written_rows.c watches statement
src/migration/migration_control.c offered_slot process
src/migration/migration_control.c offered process
src/migration/migration_control.c completing transaction
src/migration/migration_control.c is_completing transaction
src/migration/migration_process.c ignores_cancel worker
src/migration/migration_slot.c noted worker
src/planner/deparse.c entries session
src/planner/deparse.c outdated session
src/planner/prepared_view.c defining statement
src/routing/routing.c heard session
src/routing/routing.c loads session
src/routing/routing.c no_node_at session
src/statistics/statistics_worker.c tell_at_commit transaction
src/statistics/statistics_worker.c silent worker
src/statistics/statistics_worker.c due worker
src/statistics/statistics_worker.c again worker
src/transaction/background.c shown process
src/transaction/cluster_time.c text process
src/transaction/node_link.c version process
src/transaction/participant.c sql process
src/transaction/resolver.c due worker
src/transaction/resolver.c prune_due worker
src/transaction/two_phase.c random process
src/transaction/two_phase.c used process
src/transfer/lock_holders.c asked_in_vain process
src/transport/cancel.c threads process
src/transport/connection.c unlisted session
src/transport/connection.c open_array_size session
src/transport/connection.c introduction session
src/transport/connection_queue.c name process
src/transport/connection_queue.c named process
"""
# Two of a transaction each; with the next change of these files.
TO_GATHER = {"src/config/add_node.c", "src/migration/migration_control.c"}
KINDS = ("process", "session", "worker", "transaction", "statement")

VARIABLE = re.compile(r"^(?:static )?(?!static\b|typedef\b|extern\b|const\b|enum\b|union\b|return\b|PG_)"
                      r"((?:volatile |struct )?[A-Za-z_]\w*(?: \w+)*?)[ \t]+(\**)(\w+)(?:\[[^\]\n]*\])*[ \t]*(?:=[^;]*)?;", re.M)
LOCAL = re.compile(r"^\t+static (?!const\b)((?:volatile |struct )?[A-Za-z_]\w*(?: \w+)*?)[ \t]+(\**)(\w+)(?:\[[^\]\n]*\])*[ \t]*(?:=[^;]*)?;", re.M)
# Owners by their type: structs of the project and of libraries, caches, memory contexts, hooks.
OWNED = re.compile(r"HTAB$|MemoryContext$|\w+_hook_type$|(?:struct )?[A-Z]\w*[a-z]\w*$")
SCALARS = {"Oid", "TimestampTz", "Size", "Datum", "XLogRecPtr", "TransactionId", "LocalTransactionId", "CommandId", "List", "Bitmapset", "NameData"}


def loose(top):
    """(path, name, line) of each variable that no struct owns."""
    texts = {path: blank(read(top, path)) for path in sources(top, (".c",))}
    plain = "\n".join(blank(read(top, path), strings=False) for path in texts)
    settings = set(re.findall(r'"tessera\.\w+",(?:\s*(?:"(?:\\.|[^"\\])*"|NULL),?)*\s*&(\w+)', plain))
    for path, text in texts.items():
        for match in list(VARIABLE.finditer(text)) + list(LOCAL.finditer(text)):
            kind, _, name = match.groups()
            if name in settings or "*const " in match.group(0) or kind not in SCALARS and OWNED.match(kind):
                continue
            yield path, name, line_of(text, match.start(3))


def main():
    top = root()
    report = Report()
    listed = {tuple(line.split()[:2]): line.split()[2] for line in LOOSE.strip().split("\n") if line}
    found = list(loose(top))
    report.check("what a file keeps between calls has an owner",
                 ["%s:%d: %s: make it part of a struct, or list it with its kind" % (path, line, name)
                  for path, name, line in found if (path, name) not in listed])
    report.check("the list of state is right",
                 ["%s %s is not there" % key for key in sorted(set(listed) - {(path, name) for path, name, _ in found})] +
                 ["%s %s: %s is no kind" % (*key, kind) for key, kind in sorted(listed.items()) if kind not in KINDS])
    short = [path for (path, _), kind in listed.items() if kind in ("transaction", "statement")]
    report.check("state of a transaction or a statement is one struct of its file",
                 ["%s keeps %d variables of it" % (path, short.count(path)) for path in sorted(set(short) - TO_GATHER) if short.count(path) > 1])
    report.exit()


main()
