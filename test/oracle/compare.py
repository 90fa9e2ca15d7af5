#!/usr/bin/env python3
"""What a plain server and a cluster answered to one script of psql, statement by statement.

compare.py NAME DIR DETAILS: reads DIR/{plain,cluster}/NAME.{out,log}, prints one line of counts, appends what differs to DETAILS.

psql -e writes each statement before its answer, and with -L writes a log in which statements are marked; so the log tells where in the output each
answer begins. Errors are compared by SQLSTATE alone (VERBOSITY=sqlstate). An answer without ORDER BY at the top level may have its rows in any order.

    alike     the same answer
    refused   the cluster answers 0A000, the plain server does something else
    failed    another error that the plain server does not give
    follows   differs, and names something that an earlier statement which was refused, failed or went wrong has named
    wrong     differs in any other way
    skipped   shows what is a server's own: plans, physical places, sizes
"""
import collections
import difflib
import pathlib
import re
import sys

CLASSES = ("alike", "refused", "failed", "follows", "wrong", "skipped")
MARK = re.compile(r"^\*{9} QUERY \*{10}\n(.*?)\n\*{26}\n\n", re.S | re.M)
OWN = re.compile(r"\bexplain|\bctid\b|\b(c|x)m(in|ax)\b|pg_relation_size|pg_relation_filenode|relfilenode|relpages|pg_backend_pid|"
                 r"vacuum.*verbose", re.I)
ERROR = re.compile(r"^(?:psql:[^\n]*: )?(ERROR|FATAL|PANIC):  (\w{5})$", re.M)
WORD = re.compile(r"\b[a-z_][a-z0-9_]{2,}\b")
NAMED = re.compile(r"\b(?:table|view|into|update|from|join|function|index|on|type|schema|role|policy|trigger|cursor|declare|fetch|close|execute|"
                   r"prepare)\s+(?:if\s+(?:not\s+)?exists\s+|only\s+)?([a-z_][a-z0-9_.]*)", re.I)


def answers(directory, name):
    """Pairs of a statement and its answer, in order."""
    out = (directory / f"{name}.out").read_text(errors="replace")
    statements = MARK.findall((directory / f"{name}.log").read_text(errors="replace"))
    found, at = [], 0
    for statement in statements:
        start = out.find(statement + "\n", at)
        if start < 0:
            continue
        found.append((statement, start, start + len(statement) + 1))
        at = start + len(statement) + 1
    ends = [start for _, start, _ in found[1:]] + [len(out)]
    return [(statement, out[begin:end]) for (statement, _, begin), end in zip(found, ends)]


def has_order(statement):
    """Whether ORDER BY stands outside of all parentheses."""
    text = re.sub(r"'(?:[^']|'')*'", "''", statement)
    previous = None
    while previous != text:
        previous, text = text, re.sub(r"\([^()]*\)", " ", text)
    return re.search(r"\border\s+by\b", text, re.I) is not None


def same(statement, plain, cluster):
    if plain == cluster:
        return True
    return not has_order(statement) and sorted(plain.splitlines()) == sorted(cluster.splitlines())


def classify(statement, plain, cluster, tainted):
    if OWN.search(statement):
        return "skipped"
    if same(statement, plain, cluster):
        return "alike"
    theirs, ours = [m[1] for m in ERROR.findall(plain)], [m[1] for m in ERROR.findall(cluster)]
    if "25P02" in ours and "25P02" not in theirs:
        return "follows"
    if "0A000" in ours and "0A000" not in theirs:
        return "refused"
    if any(word in tainted for word in WORD.findall(statement.lower())):
        return "follows"
    return "failed" if ours and ours != theirs else "wrong"


def main():
    name, directory, details = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    plain, cluster = answers(directory / "plain", name), answers(directory / "cluster", name)
    counts = collections.Counter()
    tainted = set()
    matcher = difflib.SequenceMatcher(None, [s for s, _ in plain], [s for s, _ in cluster], autojunk=False)
    with open(details, "a", encoding="utf-8") as file:
        for tag, first, last, other, _ in matcher.get_opcodes():
            for i in range(first, last):
                statement, answer = plain[i]
                theirs = cluster[other + i - first][1] if tag == "equal" else "(not run)\n"
                kind = classify(statement, answer, theirs, tainted)
                counts[kind] += 1
                if kind not in ("alike", "skipped"):
                    tainted.update(n.lower().split(".")[-1] for n in NAMED.findall(statement))
                    file.write(f"==== {name} {kind}\n{statement}\n---- plain\n{answer[:2000]}---- cluster\n{theirs[:2000]}")
    print(f"{name:<24}" + "".join(f" {counts[kind]:>8}" for kind in CLASSES))


main()
