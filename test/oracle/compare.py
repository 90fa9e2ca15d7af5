#!/usr/bin/env python3
"""What a plain server and a cluster answered to one script of psql, statement by statement.

compare.py [--random [--moves]] NAME DIR DETAILS: reads DIR/{plain,cluster}/NAME.{out,log}, prints one line of counts, appends what differs to
DETAILS.

psql -e writes each statement before its answer, and with -L writes a log in which statements are marked; so the log tells where in the output each
answer begins. Errors and notices are compared by severity and SQLSTATE alone; DETAILS shows their texts. An answer without ORDER BY at the top level
may have its rows in any order. Statements are paired without their numbers of three digits and more, which may be ids that the server has given.

    alike     the same answer
    refused   the cluster answers 0A000 or 42P16 (a table that is sharded cannot be so), the plain server does something else
    failed    another error that the plain server does not give
    follows   differs, and names something that an earlier statement which was refused, failed or went wrong has named
    wrong     differs in any other way
    known     differs, and stands in known.txt with the reason
    skipped   shows what is a server's own: plans, physical places, sizes

With --random the statements are independent of each other (nothing follows), BEGIN and ROLLBACK do not count, and there is

    order     one of the two fails in computing a value (classes 21 and 22): which rows and expressions are computed first, and which not at all,
              is the plan's choice

    slow      one of the two was cancelled by its time limit (57014)

With --moves what the cluster answers 40001 is skipped.
"""
import collections
import difflib
import pathlib
import re
import sys

CLASSES = ("alike", "refused", "failed", "follows", "wrong", "skipped", "known")
RANDOM_CLASSES = CLASSES + ("order", "slow")
MARK = re.compile(r"^\*{9} QUERY \*{10}\n(.*?)\n\*{26}\n\n", re.S | re.M)
OWN = re.compile(r"\bexplain|\bctid\b|\b(c|x)m(in|ax)\b|pg_relation_size|pg_relation_filenode|relfilenode|relpages|pg_backend_pid|"
                 r"vacuum.*verbose|txid_|xact_id", re.I)
MESSAGE = re.compile(r"^(?:psql:[^\n]*: )?(ERROR|FATAL|PANIC|WARNING|NOTICE|INFO|LOG|DEBUG):  (\w{5}): .*?^LOCATION:  [^\n]*\n", re.S | re.M)
ERROR = re.compile(r"^(?:ERROR|FATAL|PANIC):  (\w{5})$", re.M)
ID = re.compile(r"\d{3,}")
WORD = re.compile(r"\b[a-z_][a-z0-9_]{2,}\b")
NAMED = re.compile(r"\b(?:table|view|into|update|from|join|function|index|on|type|schema|role|policy|trigger|cursor|declare|fetch|close|execute|to|"
                   r"rule|prepare)\s+(?:if\s+(?:not\s+)?exists\s+|only\s+|concurrently\s+)?([a-z_][a-z0-9_.]*)", re.I)


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


def bare(answer):
    """The answer with severities and SQLSTATEs in the place of messages."""
    return MESSAGE.sub(r"\1:  \2\n", answer)


def order_columns(statement, header):
    """Which columns of the answer the statement's last ORDER BY names, as far as that can be seen."""
    text = re.split(r"\border\s+by\b", statement, flags=re.I)[-1]
    text = re.split(r"\b(?:limit|offset|fetch|for)\b|;|\)\s*$", text, flags=re.I)[0]
    found = []
    for item in text.split(","):
        item = re.sub(r"\b(?:asc|desc|nulls\s+first|nulls\s+last)\b|\busing\s+\S+|collate\s+\S+", "", item, flags=re.I)
        item = item.strip().split(".")[-1].strip('"')
        if item.isdigit() and int(item) <= len(header):
            found.append(int(item) - 1)
        elif item in header:
            found.append(header.index(item))
        else:
            return None
    return found


def only_ties(statement, plain, cluster):
    """Whether the same rows come in another order, but what they are ordered by does not: rows that are equal in it have no order."""
    theirs, ours = ([line.split("|") for line in answer.splitlines()] for answer in (plain, cluster))
    if sorted(map(str, theirs)) != sorted(map(str, ours)) or not theirs:
        return False
    columns = order_columns(statement, [name.strip() for name in theirs[0]])
    if not columns:
        return False
    return all(a == b or len(a) != len(theirs[0]) or [a[i] for i in columns] == [b[i] for i in columns] for a, b in zip(theirs, ours))


def same(statement, plain, cluster):
    if plain == cluster:
        return True
    if has_order(statement):
        return only_ties(statement, plain, cluster)
    return sorted(plain.splitlines()) == sorted(cluster.splitlines())


def classify(statement, plain, cluster, tainted):
    if OWN.search(statement):
        return "skipped"
    plain, cluster = bare(plain), bare(cluster)
    if same(statement, plain, cluster):
        return "alike"
    theirs, ours = ERROR.findall(plain), ERROR.findall(cluster)
    if "25P02" in ours and "25P02" not in theirs:
        return "follows"
    if {"0A000", "42P16"} & set(ours) - set(theirs):
        return "refused"
    if any(word in tainted for word in WORD.findall(statement.lower())):
        return "follows"
    return "failed" if ours and ours != theirs else "wrong"


def classify_random(statement, plain, cluster, moves):
    kind = classify(statement, plain, cluster, set())
    theirs, ours = ERROR.findall(bare(plain)), ERROR.findall(bare(cluster))
    if kind in ("failed", "wrong") and any(code[:2] in ("21", "22") for code in theirs + ours) and all(code[:2] in ("21", "22") for code in ours):
        return "order"
    if kind in ("failed", "wrong") and "57014" in theirs + ours:
        return "slow"
    if kind == "failed" and moves and "40001" in ours:
        return "skipped"
    return kind


def known_patterns(name):
    lines = [line.split("\t") for line in (pathlib.Path(__file__).parent / "known.txt").read_text().splitlines() if "\t" in line]
    return [re.compile(pattern, re.I) for script, pattern, _ in lines if script in ("*", name)]


def main():
    options, (name, directory, details) = [a for a in sys.argv[1:] if a.startswith("--")], [a for a in sys.argv[1:] if not a.startswith("--")]
    random, directory = "--random" in options, pathlib.Path(directory)
    plain, cluster = answers(directory / "plain", name), answers(directory / "cluster", name)
    counts = collections.Counter()
    tainted = set()
    block_differs = False
    known = known_patterns(name)
    matcher = difflib.SequenceMatcher(None, [ID.sub("#", s) for s, _ in plain], [ID.sub("#", s) for s, _ in cluster], autojunk=False)
    with open(details, "a", encoding="utf-8") as file:
        for tag, first, last, other, _ in matcher.get_opcodes():
            for i in range(first, last):
                statement, answer = plain[i]
                theirs = cluster[other + i - first][1] if tag == "equal" else "(not run)\n"
                if random and statement.strip() in ("BEGIN;", "ROLLBACK;"):
                    continue
                kind = classify_random(statement, answer, theirs, "--moves" in options) if random else classify(statement, answer, theirs, tainted)
                if re.match(r"\s*(?:begin|start)\b", statement, re.I):
                    block_differs = False
                if kind in ("wrong", "failed") and block_differs and re.match(r"\s*(?:commit|end)\b", statement, re.I):
                    kind = "follows"
                block_differs = block_differs or kind not in ("alike", "skipped")
                if kind == "wrong" and not random and any(pattern.search(statement) for pattern in known):
                    kind = "known"
                counts[kind] += 1
                if kind not in ("alike", "skipped", "known", "slow"):
                    tainted.update(n.lower().split(".")[-1] for n in NAMED.findall(statement))
                    file.write(f"==== {name} {kind}\n{statement}\n---- plain\n{answer[:2000]}---- cluster\n{theirs[:2000]}")
    print(f"{name:<24}" + "".join(f" {counts[kind]:>8}" for kind in (RANDOM_CLASSES if random else CLASSES)))


main()
