/*
 * numbering.c
 *	  Settings by which a client names its session and numbers what it does; see numbering.h.
 *
 * The server calls a setting's assign hook both when it is set and when it is set back at the end of a transaction or subtransaction. Only the first
 * happens in a transaction that is in progress, and only that counts here. So SET LOCAL says the same as SET.
 */
#include "postgres.h"

#include <limits.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/uuid.h"

#include "logical_session/numbering.h"

int			tessera_max_sessions_per_role = 10000;
int			tessera_max_recorded_answer = 64;

/* What the client has said last. */
typedef struct Numbering
{
	bool		has_session;
	pg_uuid_t	session;
	int64		number;			/* 0: none */
	int			next;			/* statement's number */
	int			committed;		/* it, when the transaction at hand began */
	bool		used_up;		/* a transaction block was committed under the number */
	char		session_text[40];
	char		number_text[24];
	char		next_text[16];
} Numbering;

static Numbering numbering = {0};

const pg_uuid_t *
tessera_numbered_session(void)
{
	return numbering.has_session ? &numbering.session : NULL;
}

int64
tessera_transaction_number(void)
{
	return numbering.has_session ? numbering.number : 0;
}

int
tessera_statement_number_take(void)
{
	return numbering.next++;
}

void
tessera_numbering_commit(bool whole)
{
	numbering.committed = numbering.next;
	numbering.used_up |= whole;
}

bool
tessera_number_is_used_up(void)
{
	return numbering.used_up;
}

void
tessera_numbering_clear(void)
{
	memset(&numbering, 0, sizeof(numbering));
}

void
tessera_numbering_abort(void)
{
	numbering.next = numbering.committed;
}

static void
count_from(int next)
{
	numbering.next = numbering.committed = next;
	numbering.used_up = false;
}

/*
 * Only the client says it, on its connection: what a role, a database, a function or the start of a connection sets would be said once more by RESET.
 */
static bool
is_said_by_client(GucSource source)
{
	/* a parallel worker is told what its leader has */
	if (IsParallelWorker() || (source >= PGC_S_INTERACTIVE && source != PGC_S_TEST))
		return true;
	GUC_check_errdetail("It is set by SET alone, on the connection that works for the session.");
	return false;
}

/* ---- tessera.session ---- */

/* The 16 bytes of a UUID as the server writes or reads it, without raising. */
static bool
parse_uuid(const char *text, pg_uuid_t *uuid)
{
	int			n = 0;

	for (const char *at = text; *at; at++)
	{
		int			digit;

		if (*at == '-' && n % 4 == 0 && n > 0)
			continue;
		digit = *at >= '0' && *at <= '9' ? *at - '0' : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 : *at >= 'A' && *at <= 'F' ? *at - 'A' + 10 : -1;
		if (digit < 0 || n >= 2 * UUID_LEN)
			return false;
		uuid->data[n / 2] = n % 2 == 0 ? digit << 4 : uuid->data[n / 2] | digit;
		n++;
	}
	return n == 2 * UUID_LEN;
}

static bool
check_session(char **value, void **extra, GucSource source)
{
	pg_uuid_t  *uuid;

	if ((*value)[0] == '\0')
		return source != PGC_S_TEST || is_said_by_client(source);
	if (!is_said_by_client(source))
		return false;
	uuid = malloc(sizeof(pg_uuid_t));
	if (uuid == NULL)
		return false;
	*extra = uuid;
	if (parse_uuid(*value, uuid))
		return true;
	GUC_check_errdetail("It is the uuid that tessera.start_session() has returned, or empty.");
	return false;
}

static void
assign_session(const char *value, void *extra)
{
	static const char digits[] = "0123456789abcdef";
	char	   *at = numbering.session_text;

	if (!IsTransactionState())
		return;
	/* the same once more says nothing new */
	if (extra != NULL && numbering.has_session && memcmp(&numbering.session, extra, sizeof(pg_uuid_t)) == 0)
		return;
	numbering.has_session = extra != NULL;
	numbering.number = 0;
	count_from(0);
	if (extra != NULL)
	{
		memcpy(&numbering.session, extra, sizeof(pg_uuid_t));
		for (int i = 0; i < UUID_LEN; i++)
		{
			if (i == 4 || i == 6 || i == 8 || i == 10)
				*at++ = '-';
			*at++ = digits[numbering.session.data[i] >> 4];
			*at++ = digits[numbering.session.data[i] & 15];
		}
	}
	*at = '\0';
}

static const char *
show_session(void)
{
	return numbering.session_text;
}

/* ---- tessera.txn_number ---- */

static bool
check_number(char **value, void **extra, GucSource source)
{
	char	   *end;
	long long	number;

	errno = 0;
	number = strtoll(*value, &end, 10);
	if (errno != 0 || end == *value || *end != '\0' || number < 0)
	{
		GUC_check_errdetail("It is a number from 1 to 9223372036854775807, or 0 for none.");
		return false;
	}
	if (number == 0 && source != PGC_S_TEST)
		return true;
	if (!is_said_by_client(source))
		return false;
	/* set back at the end of a transaction it counts for nothing */
	if (numbering.has_session || !IsTransactionState() || IsParallelWorker())
		return true;
	GUC_check_errdetail("The connection works for no session: SET tessera.session first.");
	return false;
}

static void
assign_number(const char *value, void *extra)
{
	if (!IsTransactionState())
		return;
	numbering.number = strtoll(value, NULL, 10);
	count_from(0);
}

static const char *
show_number(void)
{
	snprintf(numbering.number_text, sizeof(numbering.number_text), INT64_FORMAT, numbering.number);
	return numbering.number_text;
}

/* ---- tessera.statement_id ---- */

static bool
check_statement(int *value, void **extra, GucSource source)
{
	return (*value == 0 && source != PGC_S_TEST) || is_said_by_client(source);
}

static void
assign_statement(int value, void *extra)
{
	if (IsTransactionState())
		count_from(value);
}

static const char *
show_statement(void)
{
	snprintf(numbering.next_text, sizeof(numbering.next_text), "%d", numbering.next);
	return numbering.next_text;
}

void
tessera_numbering_init(void)
{
	static char *session;
	static char *number;
	static int	statement;

	DefineCustomStringVariable("tessera.session",
							   "The logical session, of tessera.start_session(), that this connection works for.",
							   "A rollback does not take it back. It begins without a transaction number.",
							   &session, "", PGC_USERSET, GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE, check_session, assign_session, show_session);
	DefineCustomStringVariable("tessera.txn_number",
							   "Number of the transaction, or of the statements that commit by themselves, in the session; 0: none.",
							   "What is done under a number is done once, also if it is repeated. A rollback does not take it back.",
							   &number, "0", PGC_USERSET, GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE, check_number, assign_number, show_number);
	DefineCustomIntVariable("tessera.statement_id",
							"Number, from 0, of the next statement that commits by itself under the transaction number.",
							"Counts by itself; setting tessera.txn_number sets it to 0.",
							&statement, 0, 0, INT_MAX / 2, PGC_USERSET, GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE, check_statement, assign_statement,
							show_statement);
	DefineCustomIntVariable("tessera.max_sessions_per_role",
							"Logical sessions that one role may have; 0: no limit.",
							"Counts on the node where one more is started.",
							&tessera_max_sessions_per_role, 10000, 0, INT_MAX / 2, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.max_recorded_answer",
							"Size to which the rows that a numbered statement returns are kept for its repetition.",
							"The repetition of one that has returned more is an error.",
							&tessera_max_recorded_answer, 64, 0, 64 * 1024, PGC_USERSET, GUC_UNIT_KB, NULL, NULL, NULL);
}
