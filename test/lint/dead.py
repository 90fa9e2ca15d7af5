#!/usr/bin/env python3
"""Dead code: what nothing calls, reads or defines. Words are counted, not parsed: a name that two things share hides one of them."""
import glob
import os
import re
from collections import Counter

from csource import Report, blank, functions, line_of, read, root, sources

# Called by the server by their names.
ENTRY = {"_PG_init", "_PG_output_plugin_init"}

# What stays though nothing outside of its file calls it, or nothing reads it: each with the reason.
ALLOWED = {
    "SystemSlot.base": "the server's part of the struct",
    "Registration.what": "the reason for the order, for who reads the table",
}

WORD = re.compile(r"\b[A-Za-z_]\w*\b")
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
# In the first column: a call stands further right, and the name of a definition in a line of its own.
PROTOTYPE = re.compile(r"^(?!typedef|#|return)(?:\w+[ \t*]+)+?(\w+)\((?:[^;{}()]|\([^;{}()]*\))*\)[^;{}]*;", re.M)
STRUCT = re.compile(r"^(?:typedef |static (?:const )?)?(?:struct|union)(?: (\w+))?\n\{\n(.*?)^\}\s*(\w*)", re.M | re.S)
# The end of a declaration of a field: "name;", "name[...];", "name:3;", "(*name) (...);"
FIELD = re.compile(r"\(\*(\w+)\)\s*\([^;]*;|\b(\w+)\s*(?:\[[^;]*\]|:\s*\d+)?\s*[;,]")
# Behind a field: it is written, not read.
WRITTEN = re.compile(r"\s*(?:\[[^\]]*\]\s*)?(?:=(?!=)|[-+|&]=|(?:\+\+|--)\s*;)")
COLUMN = re.compile(r"^\s+([a-z]\w*)\s+(?:tessera\.)?(?:u?int\d|text|name|bool|oid|uuid|jsonb|timestamptz|float8|pg_lsn|bound|bound_range)\b", re.M)


class Tree:
    """The project's texts, each read once."""

    def __init__(self, top):
        self.top = top
        self.raw = {path: read(top, path) for path in sources(top)}
        self.code = {path: blank(text) for path, text in self.raw.items()}
        self.plain = {path: blank(text, strings=False) for path, text in self.raw.items()}
        self.words = {path: Counter(WORD.findall(PROTOTYPE.sub("", text))) for path, text in self.code.items()}
        self.literals = {path: Counter(WORD.findall(" ".join(LITERAL.findall(text)))) for path, text in self.plain.items()}
        scripts = sorted(glob.glob("extension/install/*.sql", root_dir=top) + glob.glob("extension/test/*.sql", root_dir=top))
        self.sql = {path: re.sub(r"--[^\n]*", "", read(top, path)) for path in scripts}
        self.calls = read(top, "src/control/calls.def")
        self.generator = Counter(WORD.findall(re.sub(r"\\.", " ", read(top, "src/control/generate.pl"))))
        tests = glob.glob("test/**", root_dir=top, recursive=True) + glob.glob("sql/*.sql", root_dir=top)
        self.tests = "\n".join(read(top, path) for path in sorted(tests)
                               if path.endswith((".c", ".pl", ".pm", ".py", ".sql", ".spec")) and "/lint/" not in path)

    def files(self, suffix):
        return [path for path in self.code if path.endswith(suffix)]


def served(tree):
    """C functions that answer calls of calls.def."""
    return {"tessera_serve_" + call.split()[0] for call in re.split(r"^call ", tree.calls, flags=re.M)[1:]}


def function_findings(tree):
    """Functions of C files: (nobody calls it, nobody else calls it though it is not static)."""
    from_sql = served(tree) | ENTRY | set(tree.generator) | set(re.findall(r"\btessera_\w+(?=\()", tree.tests))
    for text in tree.plain.values():
        from_sql.update(re.findall(r'bgw_function_name, [^;]*"(tessera_\w+)"', text))
    for text in tree.sql.values():
        from_sql.update(re.findall(r"'MODULE_PATHNAME',\s*'(\w+)'", text))
    total = sum(tree.words.values(), Counter()) + sum(tree.literals.values(), Counter())
    uncalled, could_be_static = [], []
    for path, text in tree.code.items():
        found = [(name, line) for name, line, _ in functions(text) if name not in from_sql]
        for name, line in found:
            own = sum(other == name for other, _ in found) + len(re.findall(r"PG_FUNCTION_INFO_V1\(%s\)" % name, text))
            where = "%s:%d: %s" % (path, line, name)
            here = tree.words[path][name] + tree.literals[path][name]
            if total[name] == own:
                uncalled.append(where)
            elif total[name] == here and path.endswith(".c"):
                if not re.search(r"\bstatic\b", text.split("\n")[line - 1]):
                    could_be_static.append(where)
    return uncalled, could_be_static


def prototype_findings(tree):
    defined = {name for path in tree.code for name, _, _ in functions(tree.code[path])}
    defined.update(re.findall(r"PG_FUNCTION_INFO_V1\(\s*(\w+)", "".join(tree.code.values())))
    return ["%s:%d: %s" % (path, line_of(tree.code[path], match.start(1)), match.group(1))
            for path in tree.files(".h") for match in PROTOTYPE.finditer(tree.code[path])
            if match.group(1) not in defined and not match.group(0).startswith("typedef")]


def macro_findings(tree):
    total = sum(tree.words.values(), Counter()) + tree.generator
    defined = Counter(name for text in tree.code.values() for name in re.findall(r"^#[ \t]*define[ \t]+(\w+)", text, re.M))
    guards = {name for text in tree.code.values() for name in re.findall(r"^#ifndef (\w+)", text, re.M)}
    return [name for name, times in sorted(defined.items()) if total[name] <= times and name not in guards]


def seen_from(tree):
    """header -> the C files and headers that see it, itself among them."""
    include = re.compile(r'#include "([^"]+)"')
    includes = {path: [name.replace("control/calls.h", "control/call.h") for name in include.findall(text)] for path, text in tree.plain.items()}
    seen = {path: {path} for path in tree.code}
    changed = True
    while changed:
        changed = False
        for path, names in includes.items():
            for name in names:
                header = "src/" + name if "src/" + name in seen else name
                if header in seen and not seen[path] <= seen[header]:
                    seen[header] |= seen[path]
                    changed = True
    return seen


def field_findings(tree):
    """Fields of structs that are written at most: a read of a field of that name would be in a file that sees the struct."""
    reads = {}
    for path, text in tree.code.items():
        reads[path] = {match.group(1) for match in re.finditer(r"(?:->|\.)\s*(\w+)", text) if not WRITTEN.match(text, match.end())}
        reads[path].update(re.findall(r"\boffsetof\s*\([^(),]*,\s*(\w+)", text))
    seen = seen_from(tree)
    everything = "\n".join(tree.code.values())
    # dynahash reads them
    keys = set(re.findall(r"\bkeysize = sizeof\((\w+)\)", everything))
    entries = set(re.findall(r"\bentrysize = sizeof\((\w+)\)", everything))
    findings = []
    for path, code in tree.code.items():
        for struct in STRUCT.finditer(code):
            name = struct.group(3) or struct.group(1) or ""
            for number, field in enumerate(FIELD.finditer(struct.group(2))):
                field_name = field.group(1) or field.group(2)
                if name in keys or name in entries and number == 0:
                    continue
                if not any(field_name in reads[other] for other in seen[path]):
                    findings.append("%s:%d: %s.%s" % (path, line_of(code, struct.start(2) + field.start()), name, field_name))
    return findings


def setting_findings(tree):
    """Settings whose variable nothing reads, nor SQL the setting."""
    findings = []
    sql = "\n".join(tree.sql.values())
    for path, text in tree.plain.items():
        for setting in re.finditer(r'"tessera\.(\w+)",(?:\s*(?:"[^"]*"|NULL),?)*\s*&(\w+)', text):
            name, variable = setting.groups()
            read_here = re.compile(r"^[ \t][^\n]*?(?<![&\w])%s\b(?!\s*=[^=])" % variable, re.M)
            if not any(read_here.search(code) for code in tree.code.values()) and "'tessera.%s'" % name not in sql:
                findings.append("%s:%d: tessera.%s" % (path, line_of(text, setting.start()), name))
    return findings


def sql_units(tree):
    """Pieces of text with SQL: statements of the install files, the literals of each C file."""
    units = []
    for text in tree.sql.values():
        units += [unit for unit in text.split("\n\n") if "CREATE TABLE" not in unit]
    return units + [" ".join(LITERAL.findall(text) + re.findall(r"\bAnum_\w+", text)) for text in tree.plain.values()]


def column_findings(tree):
    """Columns of the catalog that are written at most: no statement that names the table names the column but as what it sets."""
    units = []
    for unit in sql_units(tree):
        units.append(re.sub(r"\bINSERT INTO tessera\.\w+ \([^)]*\)|\b(?:SET|,)\s+\w+ =(?! ANY)", " ", unit))
    findings = []
    for path, text in tree.sql.items():
        for table in re.finditer(r"CREATE TABLE tessera\.(\w+) \((.*?)^\);", text, re.M | re.S):
            name = table.group(1)
            near = [unit for unit in units if re.search(r"\btessera\.%s\b|\bAnum_%s_" % (name, name), unit)]
            for column in COLUMN.finditer(table.group(2)):
                word = re.compile(r"\b(?:%s|Anum_%s_%s)\b" % (column.group(1), name, column.group(1)))
                if not any(word.search(unit) for unit in near):
                    findings.append("%s: tessera.%s.%s" % (path, name, column.group(1)))
    return findings


def sql_function_findings(tree):
    """SQL functions that nobody calls and doc/reference.md does not list."""
    reference = read(tree.top, "doc/reference.md")
    sql = "\n".join(tree.sql.values())
    created = re.compile(r"CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE|AGGREGATE) (tessera\w*)\.(\w+)\(")
    uses = Counter(WORD.findall(sql)) + sum(tree.literals.values(), Counter())
    uses.subtract(re.findall(r"(?:CREATE|COMMENT|GRANT|REVOKE)[A-Z ]* (?:FUNCTION|PROCEDURE|AGGREGATE) tessera\w*\.(\w+)", sql))
    findings = []
    for path, text in tree.sql.items():
        for schema, name in sorted(set(created.findall(text))):
            if schema == "tessera_test":
                if not re.search(r"\b%s\b" % name, tree.tests):
                    findings.append("%s: %s.%s, which no test calls" % (path, schema, name))
            elif uses[name] <= 0 and not re.search(r"\b%s\(" % name, reference):
                findings.append("%s: %s.%s" % (path, schema, name))
    code = sum(tree.words.values(), Counter())
    for name in re.findall(r"^call (\w+)", tree.calls, re.M):
        in_c = [prefix + name for prefix in ("tessera_call_", "tessera_queue_")] + ["TESSERA_CALL_" + name.upper()]
        if not any(code[word] for word in in_c) and not re.search(r"\btessera_internal\.%s\b" % name, sql):
            findings.append("src/control/calls.def: %s" % name)
    return findings


def main():
    top = root()
    tree = Tree(top)
    report = Report()
    uncalled, could_be_static = function_findings(tree)
    needed = set()
    for subject, findings in (("every function is called", uncalled),
                              ("functions that only their file calls are static", could_be_static),
                              ("headers declare what is defined", prototype_findings(tree)),
                              ("every macro is used", macro_findings(tree)),
                              ("every field is read", field_findings(tree)),
                              ("every setting is read", setting_findings(tree)),
                              ("every column is read", column_findings(tree)),
                              ("every SQL function and call is used, or in doc/reference.md", sql_function_findings(tree))):
        names = {finding: finding.split(": ", 1)[-1] for finding in findings}
        needed.update(names.values())
        report.check(subject, [finding for finding in findings if names[finding] not in ALLOWED])
    report.check("exceptions are still needed", [name for name in ALLOWED if name not in needed])
    report.exit()


main()
