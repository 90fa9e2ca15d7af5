"""psycopg 3 through a node: prepared statements, pipelines where libpq has them, COPY, cursors, transaction blocks, two-phase commit.

psycopg3_client.py CONNINFO OTHER: OTHER is another node, through which prepared transactions are finished. Prints a line "ok ..." for each check.
"""
import sys

import psycopg
from psycopg import errors


def check(condition, what):
    print(("ok - " if condition else "not ok - ") + what, flush=True)
    if not condition:
        sys.exit(1)


def one(connection, sql, values=None):
    return connection.execute(sql, values).fetchone()[0]


def basics(connection):
    for i in range(1, 21):          # prepared on the server from the sixth on
        connection.execute("INSERT INTO people3 (id, name, tags) VALUES (%s, %s, %s)", (i, "name %d" % i, ["a", str(i)]))
    connection.commit()
    with connection.cursor(binary=True) as cursor:
        cursor.execute("SELECT id, name, tags FROM people3 WHERE id = %s", (7,))
        check(cursor.fetchone() == (7, "name 7", ["a", "7"]), "parameters, arrays, binary results")
    if psycopg.Pipeline.is_supported():
        with connection.pipeline():
            cursors = [connection.execute("SELECT name FROM people3 WHERE id = %s", (i,)) for i in range(1, 11)]
        check([c.fetchone()[0] for c in cursors] == ["name %d" % i for i in range(1, 11)], "a pipeline")
    with connection.cursor() as cursor:
        with cursor.copy("COPY people3 (id, name) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "text"])
            for i in range(101, 201):
                copy.write_row((i, "copied"))
        with cursor.copy("COPY (SELECT id FROM people3 ORDER BY id) TO STDOUT") as copy:
            check(len(list(copy.rows())) == 120, "COPY in binary, and out")
    connection.commit()
    with connection.cursor(name="named") as cursor:
        cursor.itersize = 9
        cursor.execute("SELECT id FROM people3 ORDER BY id")
        check(len(cursor.fetchall()) == 120, "a server-side cursor")
    with connection.transaction():
        connection.execute("UPDATE people3 SET name = 'all'")
        try:
            with connection.transaction():
                connection.execute("INSERT INTO people3 (id) VALUES (1)")
        except errors.UniqueViolation:
            pass
    check(one(connection, "SELECT count(*) FROM people3 WHERE name = 'all'") == 120, "nested transaction blocks")
    connection.commit()


def two_phase(connection, other):
    xid = connection.xid(43, "global3", "branch3")
    for end in ("commit", "rollback"):
        connection.tpc_begin(xid)
        connection.execute("INSERT INTO people3 (id, name) SELECT g, %s FROM generate_series(1001, 1020) g", (end,))
        connection.tpc_prepare()
        check(one(other, "SELECT count(*) FROM people3 WHERE id > 1000") == 0, "tpc_prepare: not seen yet")
        other.rollback()
        found = [x for x in other.tpc_recover() if x.format_id == 43]
        other.rollback()
        check(len(found) == 1 and found[0].gtrid == "global3" and found[0].database == "postgres", "tpc_recover on another node finds it")
        if end == "commit":
            connection.tpc_commit()
        else:
            connection.tpc_rollback()
        check(one(connection, "SELECT count(*) FROM people3 WHERE id > 1000") == (20 if end == "commit" else 0), "tpc_%s" % end)
        connection.execute("DELETE FROM people3 WHERE id > 1000")
        connection.commit()
    connection.tpc_begin("third")
    connection.execute("INSERT INTO people3 (id) VALUES (3001), (3002), (3003)")
    connection.tpc_prepare()
    connection.close()
    found = other.tpc_recover()
    other.rollback()
    other.tpc_commit(found[0])
    check(one(other, "SELECT count(*) FROM people3 WHERE id > 3000") == 3, "finished by another when its session is gone")
    other.rollback()
    check(other.tpc_recover() == [], "nothing stays prepared")
    other.rollback()


def main():
    connection = psycopg.connect(sys.argv[1])
    other = psycopg.connect(sys.argv[2])
    basics(connection)
    two_phase(connection, other)


main()
