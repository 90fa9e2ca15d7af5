#!/usr/bin/env python3
"""SQL that the extension makes itself reaches other nodes only as a call of control/calls.def. What else it sends is listed here, with the reason:
kinds of statements that no function can run, and functions. Looked for are texts that begin like SQL, and constants that hold one, in functions that
send text to another node, and in those that make the text for them. Users' own statements are no such texts."""
import re

from csource import Report, blank, closing, functions, line_of, read, root, sources

KINDS = {
    "BEGIN": "a call would run inside of the transaction that it begins",
    "COMMIT": "ends the transaction that a call would run in; COMMIT PREPARED is refused in functions",
    "ROLLBACK": "as COMMIT; and ROLLBACK TO SAVEPOINT",
    "PREPARE": "PREPARE TRANSACTION ends the transaction",
    "SAVEPOINT": "is refused in functions",
    "RELEASE": "is refused in functions",
    "COPY": "is refused in functions",
    "DEALLOCATE": "belongs to the connection that prepares",
    "LISTEN": "belongs to the connection that listens; to this node itself",
    "EXPLAIN": "of the user's statement",
}
FUNCTIONS = {
    ("src/config/add_node.c", "check_contents"): "asks a database that may be without the extension",
    ("src/config/add_node.c", "is_former"): "asks a database that is no node",
    ("src/config/add_node.c", "join_there"): "CREATE EXTENSION: before it there is no call",
    ("src/config/node_check.c", "tessera_node_facts"): "asks a database that may be without the extension",
    ("src/config/node_check.c", "tessera_node_check"): "asks a database that may be without the extension",
    ("src/ddl/operation.c", "clean_once"): "DROP INDEX CONCURRENTLY is refused in functions",
    ("src/ddl/roles.c", "text_for"): "the user's DDL",
    ("src/ddl/statement_text.c", "tessera_statement_text"): "the user's DDL",
    ("src/executor/remote_query.c", "tessera_remote_query_probe"): "a frame around the user's statement",
    ("src/session/check_as.c", "tessera_check_as"): "a frame around the user's statement",
    ("src/transaction/node_link.c", "open_held"): "SET LOCAL: belongs to the transaction that it begins",
    ("src/statistics/analyze.c", "text_for"): "the user's ANALYZE",
    ("src/transaction/constraint_modes.c", "mode_sql"): "the user's SET CONSTRAINTS",
    ("src/transaction/participant.c", "queue_transaction"): "SET TRANSACTION of a savepoint, beside its SAVEPOINT",
}

PRIMITIVE = r"tessera_connection_(?:run|queue\w*)|PQexec\w*|PQsendQuery\w*|PQsendPrepare|PQprepare"
# What runs SQL on this node, or does not run it.
LOCAL = r"tessera_spi_run(?:_saved)?|SPI_\w+|tessera_admin_exec|tessera_admin_value|errmsg\w*|errhint|errdetail\w*"
SQL = re.compile(r'"\s*(SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|VALUES|CALL|DO|BEGIN|START|COMMIT|ROLLBACK|PREPARE|EXECUTE|DEALLOCATE|SAVEPOINT|'
                 r'RELEASE|SET|RESET|SHOW|LOCK|LISTEN|UNLISTEN|NOTIFY|DISCARD|COPY|EXPLAIN|ANALYZE|CREATE|ALTER|DROP|GRANT|REVOKE|TRUNCATE|DECLARE|'
                 r'FETCH|CLOSE)\b')
CONSTANT = re.compile(r"^#define[ \t]+(\w+)[ \t\\\n]+(\"[^\n]*)|^(?:static )?const char (?:\*const )?(\w+)(?:\[\])? =\s+(\"[^\n]*)", re.M)


class Function:
    """A function's name, parameters that are texts, and where its body is."""

    def __init__(self, path, text, blanked, name, first, count):
        lines = blanked.split("\n")
        self.path, self.name = path, name
        self.start = sum(len(line) + 1 for line in lines[:first - 1])
        self.end = self.start + sum(len(line) + 1 for line in lines[first - 1:first - 1 + count])
        head = blanked[self.start:blanked.index("{", self.start)]
        self.makes_text = re.search(r"char \*\s*%s\(" % name, head) is not None
        self.static = re.match(r"static\b", head) is not None
        self.texts = re.findall(r"const (?:char|List) \*(\w+)[,)]", head)
        self.code, self.blanked, self.text = text[self.start:self.end], blanked[self.start:self.end], text

    def key(self):
        return (self.path, self.name) if self.static else self.name

    def sent(self, senders):
        """Texts of what is given to a sender, or put into a command."""
        for match in re.finditer(r"\b(\w+)\s*\(", self.blanked[self.blanked.index("{"):]):
            name = match.group(1)
            if re.fullmatch(PRIMITIVE, name) or name in senders or (self.path, name) in senders:
                start = self.blanked.index("{") + match.end()
                yield self.code[start:closing(self.blanked, start - 1)]
        for match in re.finditer(r"(?:->|\.)sql\s*=(?!=)([^;]*)", self.code):
            yield match.group(1)


def without_local(function):
    """The body without what runs on this node."""
    code = function.code
    for match in re.finditer(r"\b(?:%s)\s*\(" % LOCAL, function.blanked):
        end = closing(function.blanked, match.end() - 1)
        code = code[:match.end()] + re.sub(r"[^\n]", " ", code[match.end():end]) + code[end:]
    return code


def kinds(code, constants):
    """(position, kind) of each SQL text, by its own words or by the constant's name."""
    found = [(match.start(), match.group(1)) for match in SQL.finditer(code)]
    found += [(match.start(), "COMMIT") for match in re.finditer(r'"%s PREPARED', code)]
    return found + [(match.start(), constants[match.group(0)]) for match in re.finditer(r"\b\w+\b", code) if match.group(0) in constants]


def main():
    top = root()
    report = Report()
    everything, constants = [], {}
    for path in sources(top, (".c", ".h")):
        text = blank(read(top, path), strings=False)
        for name, value, other, other_value in CONSTANT.findall(text):
            match = SQL.match(value or other_value)
            if match:
                constants[name or other] = match.group(1)
        if path.startswith("src/control/") or not path.endswith(".c"):
            continue
        blanked = blank(text)
        everything += [Function(path, text, blanked, *function) for function in functions(blanked)]

    senders = set()
    while True:
        new = {function.key() for function in everything if function.key() not in senders and
               any(re.search(r"\b%s\b" % name, sent) for name in function.texts for sent in function.sent(senders))}
        if not new:
            break
        senders |= new

    sending = [function for function in everything if any(True for _ in function.sent(senders))]
    makers = {function.key(): function for function in everything if function.makes_text}
    called = {key for function in sending for name in re.findall(r"\b(\w+)\s*\(", function.blanked) for key in (name, (function.path, name))}
    findings, used = [], set()
    for function in {function.path + function.name: function for function in sending + [makers[key] for key in called if key in makers]}.values():
        for position, kind in kinds(without_local(function), constants):
            excuse = kind if kind in KINDS else (function.path, function.name)
            used.add(excuse)
            if excuse not in KINDS and excuse not in FUNCTIONS:
                findings.append("%s:%d: %s sends %s ...: make it a call of src/control/calls.def" %
                                (function.path, line_of(function.text, function.start + position), function.name, kind))
    report.check("SQL for other nodes stands in control/calls.def", findings)
    report.check("exceptions are still needed",
                 ["%s is no longer sent" % (excuse,) for excuse in list(KINDS) + list(FUNCTIONS) if excuse not in used])
    report.exit()


main()
