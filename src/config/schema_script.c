/*
 * schema_script.c
 *	  The schema of this database as one SQL script, for a node that joins.
 *
 * pg_dump of the server's own bin directory writes it into a temporary file of this transaction (removed at its end, or at the next server start
 * after a crash); what it says comes through the pipe. pg_dump connects through the node's own conninfo, as any node would; a password goes through
 * the environment, never on the command line. A cancel reaches pg_dump too: the postmaster's children signal their whole process group.
 */
#include "postgres.h"

#include <unistd.h>

#include "libpq-fe.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "config/membership.h"

/* A script is sent as one parameter. */
#define SCRIPT_LIMIT (512 * 1024 * 1024)
#define MESSAGE_LIMIT 4096
/* What pg_dump writes before the first object ends well before this. */
#define HEAD 1000
/* How long pg_dump waits for a lock. */
#define LOCK_WAIT "10s"

/* Append text as one word of the shell. */
static void
append_shell_word(StringInfo out, const char *text)
{
	appendStringInfoChar(out, '\'');
	for (const char *p = text; *p; p++)
	{
		if (*p == '\'')
			appendStringInfoString(out, "'\\''");
		else
			appendStringInfoChar(out, *p);
	}
	appendStringInfoChar(out, '\'');
}

/* Append keyword='value' of a conninfo. */
static void
append_conninfo_option(StringInfo out, const char *keyword, const char *value)
{
	appendStringInfo(out, "%s%s='", out->len == 0 ? "" : " ", keyword);
	for (const char *p = value; *p; p++)
	{
		if (*p == '\'' || *p == '\\')
			appendStringInfoChar(out, '\\');
		appendStringInfoChar(out, *p);
	}
	appendStringInfoChar(out, '\'');
}

/* The conninfo without secrets, which everybody on the machine could read from the process list; *password: to be given otherwise, or NULL. */
static char *
conninfo_without_secrets(const char *conninfo, char **password)
{
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	StringInfoData out;
	bool		has_timeout = false;

	*password = NULL;
	if (options == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("conninfo of this node is not valid"),
				 errhint("Change it with tessera.update_node().")));
	initStringInfo(&out);
	for (PQconninfoOption *option = options; option->keyword != NULL; option++)
	{
		if (option->val == NULL || option->val[0] == '\0')
			continue;
		if (strcmp(option->keyword, "password") == 0)
			*password = pstrdup(option->val);
		else if (strcmp(option->keyword, "sslpassword") != 0)
			append_conninfo_option(&out, option->keyword, option->val);
		if (strcmp(option->keyword, "connect_timeout") == 0)
			has_timeout = true;
	}
	PQconninfoFree(options);
	if (!has_timeout)
		append_conninfo_option(&out, "connect_timeout", "10");
	return out.data;
}

/* pg_dump beside this server's postgres. */
static char *
pg_dump_path(void)
{
	char	   *path = pstrdup(my_exec_path);
	char	   *slash = strrchr(path, '/');

	if (slash != NULL)
		*slash = '\0';
	path = psprintf("%s/pg_dump", path);
	if (access(path, X_OK) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FILE),
				 errmsg("pg_dump not found beside this server"),
				 errdetail("A node that joins gets its schema from \"%s\": %m.", path),
				 errhint("Install PostgreSQL's client programs of this version on the config node's machine.")));
	return path;
}

/* Runs the command; what it says goes to messages (the first part of it). Returns the wait status. */
static int
run_command(const char *command, const char *password, StringInfo messages)
{
	char		line[1024];
	FILE	   *pipe;

	if (password != NULL)
		setenv("PGPASSWORD", password, 1);
	pipe = OpenPipeStream(command, PG_BINARY_R);
	if (password != NULL)
		unsetenv("PGPASSWORD");
	if (pipe == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not run pg_dump: %m")));
	while (fgets(line, sizeof(line), pipe) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (messages->len + strlen(line) < MESSAGE_LIMIT)
			appendStringInfoString(messages, line);
	}
	return ClosePipeStream(pipe);
}

static char *
read_file(File file)
{
	off_t		size = FileSize(file);
	char	   *data;
	off_t		done = 0;

	if (size < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read the schema script: %m")));
	if (size > SCRIPT_LIMIT)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the schema of this database is too large to send"),
				 errdetail("The script has %lld bytes, the limit is %d.", (long long) size, SCRIPT_LIMIT)));
	data = palloc(size + 1);
	while (done < size)
	{
		int			n = FileRead(file, data + done, size - done, done, PG_WAIT_EXTENSION);

		if (n <= 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read the schema script: %m")));
		done += n;
	}
	data[size] = '\0';
	return data;
}

/* Overwrite the line that begins at p with blanks. */
static void
blank_line(char *p)
{
	while (*p != '\0' && *p != '\n')
		*p++ = ' ';
}

/*
 * Newer pg_dump brackets the script between two commands of psql, "\restrict KEY" before all and "\unrestrict KEY" behind all else: the only ones it
 * writes into a script of one database. And it lifts the lock timeout; here waits stay bounded.
 */
static char *
clean_script(char *script)
{
	static const char open_command[] = "\n\\restrict ";
	static const char close_command[] = "\n\\unrestrict ";
	static const char no_timeout[] = "\nSET lock_timeout = 0;\n";
	static const char with_timeout[] = "\nSET lock_timeout=2e4;\n";	/* 20 s, in as many bytes */
	char	   *first = strstr(script, open_command);
	char	   *last = NULL;
	char	   *timeout;
	char	   *p;

	for (p = strstr(script, close_command); p != NULL; p = strstr(p + 1, close_command))
		last = p;

	StaticAssertStmt(sizeof(no_timeout) == sizeof(with_timeout), "replaced in place");
	if (first != NULL && first - script < HEAD && last != NULL)
	{
		blank_line(first + 1);
		blank_line(last + 1);
	}
	timeout = strstr(script, no_timeout);
	if (timeout != NULL && timeout - script < HEAD)
		memcpy(timeout, with_timeout, sizeof(with_timeout) - 1);
	return script;
}

char *
tessera_schema_script(const char *conninfo)
{
	char	   *password;
	char	   *public_conninfo = conninfo_without_secrets(conninfo, &password);
	char	   *program = pg_dump_path();
	File		file = OpenTemporaryFile(false);
	StringInfoData command;
	StringInfoData messages;
	int			status;
	char	   *script;

	initStringInfo(&command);
	initStringInfo(&messages);
	append_shell_word(&command, program);
	appendStringInfoString(&command, " --schema-only --no-password --no-tablespaces --no-subscriptions --exclude-schema=tessera "
						   "--lock-wait-timeout=" LOCK_WAIT);
	appendStringInfo(&command, " --encoding=%s --file=", GetDatabaseEncodingName());
	append_shell_word(&command, FilePathName(file));
	appendStringInfoString(&command, " --dbname=");
	append_shell_word(&command, public_conninfo);
	appendStringInfoString(&command, " 2>&1");

	status = run_command(command.data, password, &messages);
	CHECK_FOR_INTERRUPTS();
	if (status != 0)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not read the schema of this database: pg_dump failed"),
				 errdetail("%s", messages.len > 0 ? pchomp(messages.data) : wait_result_to_str(status))));
	script = clean_script(read_file(file));
	FileClose(file);
	return script;
}
