#!/usr/bin/env python3
"""Acting as somebody else: who the current user is, in which security context, who the session's user is and which triggers fire
(session_replication_role) change in src/common/acting_as.c alone, or by an exception listed here with its reason. Looked for are the server's
functions and variables for it in C, statements and settings of it in texts of C, and statements and clauses of it in the extension's SQL. SQL
functions that run as their owner (SECURITY DEFINER) are listed, since each is such a place."""
import glob
import os
import re

from csource import Report, blank, functions, line_of, read, root, sources

HOME = "src/common/acting_as.c"

FUNCTION = re.compile(r"\b(SetUserIdAndSecContext|SetUserIdAndContext|SetSessionAuthorization|SetCurrentRoleId|SetAuthenticatedUserId\w*|"
                      r"InitializeSessionUserId\w*|SessionReplicationRole|SwitchToUntrustedUser|RestoreUserContext)\b")
# Also as a setting of a list, a connection's option (-c role=) or an argument of set_config.
SETTING = r"(?:role|session_authorization|session_replication_role)"
STATEMENT = (r"\b(?:SET|RESET)\s+(?:LOCAL\s+|SESSION\s+)?(?:ROLE|SESSION\s+AUTHORIZATION|session_authorization|session_replication_role)\b|"
             r"\bset_config\s*\(\s*'%s'|-c\s*%s\s*=|^\s*%s\s*=" % (SETTING, SETTING, SETTING))
TEXT = re.compile(r"^%s$|\bsession_replication_role\b|%s" % (SETTING, STATEMENT), re.I)
SQL = re.compile(r"\bsession_replication_role\b|" + STATEMENT, re.I)
# In text whose strings are blanked: one, and those that make one together.
LITERAL = re.compile(r'"([^"]*)"')
LITERALS = re.compile(r'"[^"]*"(?:\s*"[^"]*")*')

# (file, what is found there): why. Names of settings that come from a variable are not seen: those of the mirror (set_mirrored in
# session/internal_connection.c, restore_settings in ddl/fan_out.c) are the user's own, by his own rights.
EXCEPTIONS = {
    ("src/transaction/settings_mirror.c", "role"): "names that are not carried to other nodes",
    ("src/transaction/settings_mirror.c", "session_authorization"): "names that are not carried to other nodes",
}

# SQL functions that run as the extension's owner.
DEFINERS = {
    "extension/install/10_catalog.sql": "tessera_internal.on_config_node",
    "extension/install/15_routing.sql": "catalog_changes",
    "extension/install/25_transaction.sql": "transaction_outcome decided_time prepare_begin prepare_record finish_prepared settle_transaction "
                                            "note_outcome noted_outcome prepared_transactions unfinished_transactions prepared_count part_awaiting "
                                            "client_gid standbys_flushed",
    "extension/install/35_ddl.sql": "role_exists database_size note_ddl_operation end_ddl_operation find_ddl_operation ddl_operation_state "
                                    "ddl_operation_part list_ddl_operations",
    "extension/install/45_sharding.sql": "group_rests",
    "extension/install/55_migration.sql": "migration_state running_migrations migration_progress unsettled_ranges",
    "extension/install/57_promotion.sql": "tessera_internal.migration_request register_server moves_received known_terms merge_facts",
    "extension/install/58_statistics.sql": "statistics_stamps statistics_rows relation_size",
    "extension/install/59_consistency.sql": "group_chunks table_groups busy_groups owned_ranges prepared_parts promotion_doubt unowned_rows",
    "extension/install/62_advisory.sql": "advisory_homes",
    "extension/install/67_restore_point.sql": "register_restore_point complete_restore_point",
}

# What runs as somebody else says whose code that can be.
ACTS = r"\btessera_act_(?:as\w*|from_now_on|in_session_of)\s*\("


def c_findings(top):
    """(path, line, what) in C."""
    for path in sources(top):
        if path == HOME:
            continue
        text = read(top, path)
        blanked = blank(text)
        for match in FUNCTION.finditer(blanked):
            yield path, line_of(text, match.start()), match.group(1)
        for match in LITERALS.finditer(blanked):
            literal = "".join(text[match.start() + part.start(1):match.start() + part.end(1)] for part in LITERAL.finditer(match.group(0)))
            found = TEXT.search(literal)
            if found:
                yield path, line_of(text, match.start()), found.group(0)


def sql_files(top):
    return sorted(os.path.relpath(path, top) for folder in ("install", "test") for path in glob.glob(os.path.join(top, "extension", folder, "*.sql")))


def sql_findings(top):
    """(path, line, what) in SQL."""
    for path in sql_files(top):
        text = re.sub(r"--[^\n]*", lambda match: " " * len(match.group(0)), read(top, path))
        for match in SQL.finditer(text):
            yield path, line_of(text, match.start()), match.group(0)


def definers(top):
    """(path, function, its clauses) of each SQL function that runs as its owner."""
    for path in sql_files(top):
        parts = re.split(r"^(?=CREATE\b|@call\b)", read(top, path), flags=re.M)
        for part in parts:
            clauses = re.split(r"\$\w*\$|^@comment", part, maxsplit=1, flags=re.M)[0]
            name = re.match(r"@call (\w+)@|CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) ([\w.]+)", part)
            if re.search(r"\bSECURITY\s+DEFINER\b", clauses, re.I):
                yield path, (name.group(1) or name.group(2)) if name else part.split("\n")[0], clauses


def unexplained(top):
    """Calls without a comment, directly above them or at the head of their function."""
    for path in sources(top, (".c",)):
        if path == HOME:
            continue
        text = read(top, path)
        blanked, lines = blank(text), text.split("\n")
        # from the comment that a function has at its head to its end
        explained = [(first - 1, first - 1 + count) for _, first, count in functions(blanked) if lines[first - 2].rstrip().endswith("*/")]
        for match in re.finditer(ACTS, blanked):
            line = line_of(text, match.start()) - 1
            if "*/" not in lines[line - 1] and "*/" not in lines[line - 2] and not any(start <= line <= end for start, end in explained):
                yield "%s:%d: say whose code can run below it" % (path, line + 1)


def main():
    top = root()
    report = Report()
    found = list(c_findings(top)) + list(sql_findings(top))
    report.check("only %s acts as somebody else" % HOME,
                 ["%s:%d: %s: use common/acting_as.h" % finding for finding in found if (finding[0], finding[2]) not in EXCEPTIONS])
    report.check("exceptions are still needed",
                 ["%s has no %s" % key for key in EXCEPTIONS if key not in {(path, what) for path, _, what in found}])
    report.check("who acts as somebody else says whose code can run", list(unexplained(top)))

    listed = {(path, name) for path, names in DEFINERS.items() for name in names.split()}
    running = list(definers(top))
    report.check("SQL functions that run as their owner are listed",
                 ["%s: %s is not" % (path, name) for path, name, _ in running if (path, name) not in listed] +
                 ["%s: %s is none" % key for key in sorted(listed - {(path, name) for path, name, _ in running})])
    report.check("they have a search path of their own",
                 ["%s: %s" % (path, name) for path, name, clauses in running if not re.search(r"\bSET search_path = pg_catalog, pg_temp\b", clauses)])
    report.exit()


main()
