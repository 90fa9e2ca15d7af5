/*
 * client.c
 *	  One connection to one node for the chaos suite, driven by lines: a workload in Perl says what to run, this program runs it by libpq under a deadline.
 *
 * A line of input is a command, a tab, and its argument; every command is answered by one line.
 *
 *	  open <conninfo>     ok
 *	  run <statement>     ok <milliseconds> <command status> <rows>
 *	  copy <COPY FROM STDIN> <rows>   the same; before the rows comes a tab, too
 *	  close               ok
 *
 * or `error <SQLSTATE> <message>`. Rows are separated by the byte 0x1e, columns by 0x1f. Failures that the server did not tell have made-up codes: 08006
 * the connection is lost (and closed), 08003 there is none, CHAOS the deadline has passed (the connection is closed, the outcome is unknown).
 *
 * Usage: client DEADLINE_IN_MS
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

#define ROW_END "\x1e"

static PGconn *connection = NULL;
static double deadline_ms;

static double
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000.0 + now.tv_nsec / 1e6;
}

static void
disconnect(void)
{
	if (connection != NULL)
		PQfinish(connection);
	connection = NULL;
}

/* Text on one line. */
static void
print_text(const char *text)
{
	for (; *text; text++)
		putchar(*text == '\n' || *text == '\t' || *text == '\r' ? ' ' : *text);
}

static void
answer_error(const char *sqlstate, const char *message)
{
	printf("error\t%s\t", sqlstate);
	print_text(message);
	putchar('\n');
}

/* Waits for the socket; false: too late. */
static int
wait_socket(short events, double until)
{
	struct pollfd wanted = {.fd = PQsocket(connection), .events = events};
	double		left = until - now_ms();

	return left > 0 && poll(&wanted, 1, (int) left + 1) != 0;
}

static void
open_connection(const char *conninfo)
{
	double		until = now_ms() + deadline_ms;
	PostgresPollingStatusType status = PGRES_POLLING_WRITING;

	disconnect();
	connection = PQconnectStart(conninfo);
	while (connection != NULL && PQstatus(connection) != CONNECTION_BAD && status != PGRES_POLLING_OK && status != PGRES_POLLING_FAILED)
	{
		if (!wait_socket(status == PGRES_POLLING_READING ? POLLIN : POLLOUT, until))
			break;
		status = PQconnectPoll(connection);
	}
	if (status == PGRES_POLLING_OK)
		puts("ok");
	else
	{
		answer_error(status == PGRES_POLLING_FAILED ? "08001" : "CHAOS", connection ? PQerrorMessage(connection) : "out of memory");
		disconnect();
	}
}

static void
answer_rows(const PGresult *result, double begun)
{
	printf("ok\t%.3f\t%s\t", now_ms() - begun, PQcmdStatus((PGresult *) result));
	for (int row = 0; row < PQntuples(result); row++)
	{
		if (row > 0)
			fputs(ROW_END, stdout);
		for (int column = 0; column < PQnfields(result); column++)
		{
			if (column > 0)
				putchar(0x1f);
			print_text(PQgetvalue(result, row, column));
		}
	}
	putchar('\n');
}

/* Reads on until the statement is done; false: too late. */
static int
wait_done(double until)
{
	while (PQisBusy(connection))
	{
		if (!wait_socket(POLLIN, until))
			return 0;
		if (!PQconsumeInput(connection))
			break;
	}
	return 1;
}

/* The server asks for rows; what goes wrong then is told by the result. */
static void
send_rows(const char *rows)
{
	int			good = 1;

	while (rows != NULL && *rows && good)
	{
		size_t		size = strcspn(rows, ROW_END);

		good = PQputCopyData(connection, rows, size) == 1 && PQputCopyData(connection, "\n", 1) == 1;
		rows += size + (rows[size] != '\0');
	}
	PQputCopyEnd(connection, rows == NULL ? "there are no rows" : NULL);
}

/* rows: of a COPY FROM STDIN, else NULL. */
static void
run(const char *statement, const char *rows)
{
	double		begun = now_ms();
	double		until = begun + deadline_ms;
	PGresult   *last = NULL;
	PGresult   *result;

	if (connection == NULL)
	{
		answer_error("08003", "there is no connection");
		return;
	}
	if (PQsendQuery(connection, statement))
	{
		while (wait_done(until) && (result = PQgetResult(connection)) != NULL)
		{
			if (PQresultStatus(result) == PGRES_COPY_IN)
				send_rows(rows);
			/* the first error is the one to tell */
			if (last != NULL && PQresultStatus(last) == PGRES_FATAL_ERROR)
				PQclear(result);
			else
			{
				PQclear(last);
				last = result;
			}
		}
		if (PQstatus(connection) == CONNECTION_OK && PQisBusy(connection))
		{
			PQclear(last);
			answer_error("CHAOS", "no answer in time");
			disconnect();
			return;
		}
	}
	if (last != NULL && (PQresultStatus(last) == PGRES_TUPLES_OK || PQresultStatus(last) == PGRES_COMMAND_OK))
		answer_rows(last, begun);
	else
	{
		const char *sqlstate = last ? PQresultErrorField(last, PG_DIAG_SQLSTATE) : NULL;

		answer_error(sqlstate ? sqlstate : "08006", last ? PQresultErrorMessage(last) : PQerrorMessage(connection));
		if (PQstatus(connection) == CONNECTION_BAD)
			disconnect();
	}
	PQclear(last);
}

int
main(int argc, char **argv)
{
	char	   *line = NULL;
	size_t		size = 0;
	ssize_t		length;

	deadline_ms = argc > 1 ? atof(argv[1]) : 30000;
	while ((length = getline(&line, &size, stdin)) > 0)
	{
		char	   *argument;

		line[strcspn(line, "\n")] = '\0';
		argument = strchr(line, '\t');
		if (argument != NULL)
			*argument++ = '\0';
		if (strcmp(line, "open") == 0)
			open_connection(argument ? argument : "");
		else if (strcmp(line, "run") == 0)
			run(argument ? argument : "", NULL);
		else if (strcmp(line, "copy") == 0 && argument != NULL && strchr(argument, '\t') != NULL)
		{
			char	   *rows = strchr(argument, '\t');

			*rows++ = '\0';
			run(argument, rows);
		}
		else if (strcmp(line, "close") == 0)
		{
			disconnect();
			puts("ok");
		}
		else
			answer_error("22023", "unknown command");
		fflush(stdout);
	}
	disconnect();
	free(line);
	return 0;
}
