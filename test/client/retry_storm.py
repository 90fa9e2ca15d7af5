#!/usr/bin/env python3
"""Clients that repeat what they do: each operation is attempted several times, through nodes drawn at random, over connections that
are cut in the middle, until it is known to be done. Says at the end, for each operation, the answers that its attempts were given.

usage: retry_storm.py SEED CLIENTS OPERATIONS STOP CONNINFO...

Writes a line of JSON for each operation: client, number, kind, answers (a list without doubles), known (TS005: committed before). Ends with status 1
if an operation cannot be brought to its end in some minutes. While the file STOP is not there the last operation is followed by others."""
import json
import os
import random
import sys
import threading
import time

import psycopg

SEED, CLIENTS, OPERATIONS, STOP = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
NODES = sys.argv[5:]
COUNTERS = 40
DEADLINE = 300 * float(os.environ.get("TESSERA_TIME_FACTOR", "1"))
# What a client repeats: a lost connection, a server that starts or stops, what was rolled back for another's sake, what waited too long.
REPEATED = ("08", "57P", "40", "55P", "55006", "53300", "25P02", "XX000" if os.environ.get("STORM_INTERNAL") else "08")

output = threading.Lock()
failed = threading.Event()


class Cut(Exception):
    """The client has closed its own connection."""


def statements(kind, client, number, rng):
    """The statements of an operation, the same at each attempt."""
    first, second = rng.sample(range(1, COUNTERS + 1), 2)
    entry = "INSERT INTO entry (client, number, note) VALUES (%d, %d, 'by %s')" % (client, number, kind)
    one = "UPDATE counter SET n = n + 1 WHERE k = %d" % first
    return {
        "insert": [entry + " RETURNING id, note"],
        "update": [one + " RETURNING k, n"],
        "several": ["UPDATE counter SET n = n + 1 WHERE k IN (%d, %d) RETURNING k" % (first, second)],
        "conflict": ["INSERT INTO counter VALUES (%d, 1) ON CONFLICT (k) DO UPDATE SET n = counter.n + 1 RETURNING n" % first],
        "function": ["INSERT INTO entry (client, number, note) SELECT %d, %d, bump(%d)::text RETURNING id" % (client, number, first)],
        "block": ["BEGIN", entry, one, "UPDATE counter SET n = n + 1 WHERE k = %d" % second, "COMMIT"],
    }[kind]


KINDS = ("insert", "update", "several", "conflict", "block", "block")


class Client(threading.Thread):
    def __init__(self, number):
        super().__init__()
        self.rng = random.Random(SEED * 1000 + number)
        self.number = number
        self.session = None
        self.connection = None

    def connect(self):
        self.connection = psycopg.connect(self.rng.choice(NODES) + " connect_timeout=10", autocommit=True, prepare_threshold=None)
        if self.session is not None:
            self.connection.execute("SET tessera.session = '%s'" % self.session)

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def run_one(self, sql, cut):
        """The rows of a statement. With cut the connection is closed at some moment after it was sent."""
        if not cut:
            cursor = self.connection.execute(sql)
            return sorted(cursor.fetchall()) if cursor.description else []
        self.connection.pgconn.send_query(sql.encode())
        self.connection.pgconn.flush()
        time.sleep(self.rng.random() ** 3 * 0.05)
        raise Cut()

    def attempt(self, number, texts, cut):
        """The answer; None if it was committed before."""
        if self.connection is None:
            self.connect()
        self.connection.execute("SET tessera.txn_number = %d" % number)
        answer = []
        try:
            for sql in texts:
                answer = self.run_one(sql, cut and sql is texts[-1]) or answer
        except psycopg.Error as error:
            if error.sqlstate != "TS005":
                raise
            self.connection.execute("ROLLBACK")
            return None
        return answer

    def operation(self, number):
        rng = random.Random(SEED * 1000000 + self.number * 1000 + number)
        kind = rng.choice(KINDS)
        texts = statements(kind, self.number, number, rng)
        wanted = self.rng.randint(1, 4)
        answers, known = [], 0
        until = time.monotonic() + DEADLINE
        while wanted > 0:
            try:
                if self.rng.random() < 0.4:
                    self.close()
                answer = self.attempt(number, texts, self.rng.random() < 0.35)
                if answer is None:
                    known += 1
                elif answer not in answers:
                    answers.append(answer)
                wanted -= 1
            except Cut:
                self.close()
            except psycopg.Error as error:
                self.close()
                state = error.sqlstate or "08000"
                if not state.startswith(REPEATED) or time.monotonic() > until:
                    raise RuntimeError("client %d number %d %s: %s %s" % (self.number, number, texts, state, error)) from error
                time.sleep(0.05)
        with output:
            print(json.dumps({"client": self.number, "number": number, "kind": kind, "answers": answers, "known": known}), flush=True)

    def run(self):
        try:
            while self.session is None:
                try:
                    self.connect()
                    self.session = self.connection.execute("SELECT tessera.start_session()").fetchone()[0]
                except psycopg.Error:
                    self.session = None
                self.close()
            number = 0
            while not failed.is_set() and (number < OPERATIONS or not os.path.exists(STOP)):
                number += 1
                self.operation(number)
        except Exception as error:  # pylint: disable=broad-except
            failed.set()
            print("# %s" % error, file=sys.stderr, flush=True)
        finally:
            self.close()


clients = [Client(number) for number in range(1, CLIENTS + 1)]
for one in clients:
    one.start()
for one in clients:
    one.join()
sys.exit(1 if failed.is_set() else 0)
