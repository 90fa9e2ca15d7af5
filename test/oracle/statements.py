#!/usr/bin/env python3
"""sqlsmith's statements on standard input, each made one that has only one right answer, into scripts of psql.

statements.py DIR: writes DIR/q00000.sql and so on, 100 statements each. A sample is left out, and LIMIT, as which rows it lets through is nobody's
business; where one row is wanted for a value, it gets an order. The table basket is temporary.
"""
import re
import sys

TABLES = ("orders", "lines", "customers", "visits", "names", "settings", "countries", "basket")
SUMS = " UNION ALL ".join(f"SELECT '{t}', count(*), sum(hashtext(t::text)::bigint) FROM {t} t" for t in TABLES)
BASKET = """CREATE TEMP TABLE basket (id int, of int, note text, weight numeric, made date);
INSERT INTO basket SELECT g, g % 7, 'n' || g % 10, g * 0.5, DATE '2020-01-01' + g FROM generate_series(1, 20) g;
"""


def settled(statement):
    statement = re.sub(r"\btablesample\s+\w+\s*\([\d.]+\)", "", statement)
    statement = re.sub(r"(\(select [\w.]+ from [\w.]+) (limit 1 offset)", r"\1 order by 1 \2", statement)
    statement = re.sub(r"(?m)^\s*limit \d+(?=\)|\s|;|$)", "", statement)
    return statement.replace("public.basket", "pg_temp.basket").strip()


def main():
    directory = sys.argv[1]
    statements = [settled(s) for s in re.split(r";\n", sys.stdin.read()) if s.strip()]
    for first in range(0, len(statements), 100):
        with open(f"{directory}/q{first:05d}.sql", "w", encoding="utf-8") as file:
            file.write(BASKET)
            for statement in statements[first:first + 100]:
                file.write(f"BEGIN;\n{statement};\n")
                if re.search(r"\b(insert into|update|delete from|merge into)\b", statement, re.I):
                    file.write(f"{SUMS};\n")
                file.write("ROLLBACK;\n")


main()
