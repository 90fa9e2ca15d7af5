/*
 * copy_from.c
 *	  COPY FROM into a table of the cluster.
 *
 * Phases: accept (every shard that owns chunks locks the table and checks the version the router goes by; any stale: refresh and ask all again); rows
 * (read, find the shard, append to its stream); end (all streams told, then all answers read).
 *
 * Two modes. Raw: text and CSV input whose rows need nothing of the router but their key goes on line by line as it came. Values: everything else
 * (binary input, WHERE, defaults that must be computed once) is read as values and sent as binary, or as text where a type has node-local OIDs.
 *
 * Where the table's triggers fire on the router, the rows are read to the end and then inserted by one INSERT (row_trigger_scan.c).
 *
 * This node's own rows go through the server's COPY: it pulls from a callback, which reads on until the next row is of this shard. The callback has
 * no argument, so the copy in progress is a static variable; copies nest (triggers), each restores the one before.
 *
 * Memory: everything in the context current at the start, rows in the per-tuple context. Errors: every stream is brought out of COPY before they go
 * on.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/copy.h"
#include "commands/defrem.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "rewrite/rewriteHandler.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/queryenvironment.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "catalog/trigger_place.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "common/wire.h"
#include "control/calls.h"
#include "executor/copy.h"
#include "executor/cut.h"
#include "executor/route_loop.h"
#include "executor/shard_check.h"
#include "executor/targets.h"
#include "load/written_rows.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"


typedef struct Copy
{
	Relation	rel;
	const TesseraRouting *routing;
	const TesseraTable *table;
	const TesseraGroup *group;	/* NULL: placed */
	/* input */
	CopyFromState input;
	ErrorContextCallback context;	/* names the input's line; its previous is what was there before us */
	EState	   *estate;
	ExprContext *econtext;
	ExprState  *where;
	TupleTableSlot *slot;
	Datum	   *values;
	bool	   *nulls;
	/* keys */
	int			key_fields[TESSERA_MAX_KEY_COLUMNS];	/* raw: position of the key column among the fields of a line */
	/* output */
	bool		raw;
	TesseraCopyRow *row;		/* values mode */
	char	   *sql;			/* COPY ... FROM STDIN, for every shard */
	int			nstreams;
	TesseraCopyStream *streams;
	int			last;			/* stream of the last row */
	TesseraCopyStream *local;	/* this node's, among the streams; NULL: none. Its buffer holds what the callback has not given yet */
	int			local_offset;
	bool		local_started;
	bool		ended;			/* the input */
	CopyFromState local_input;
	struct Copy *outer;
} Copy;

Node	   *(*tessera_route_default) (Node *expression) = NULL;

static Copy *current = NULL;

/* ---- accept ---- */

/* Triggers and foreign keys read while rows are on their way, when no node can be asked any more. */
static void
settle_snapshot(const Copy *copy)
{
	int32	   *node_ids = palloc(sizeof(int32) * copy->nstreams);

	for (int i = 0; i < copy->nstreams; i++)
		node_ids[i] = copy->streams[i].node_id;
	tessera_cut_transaction(copy->routing, copy->nstreams, node_ids, NULL, ActiveSnapshotSet() ? GetActiveSnapshot() : NULL);
	pfree(node_ids);
}

static bool
find_streams(TesseraRoute *route, TesseraShardRunRequest *request)
{
	Copy	   *copy = route->owner;

	copy->routing = request->routing;
	copy->table = copy->routing ? tessera_routing_table(copy->routing, RelationGetRelid(copy->rel)) : NULL;
	if (copy->table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("table \"%s\" is no longer a table of the cluster", RelationGetRelationName(copy->rel))));
	copy->group = copy->table->group >= 0 ? tessera_routing_group(copy->routing, copy->table->group) : NULL;
	copy->last = 0;
	if (copy->group == NULL)
	{
		copy->nstreams = 1;
		copy->streams = palloc0(sizeof(TesseraCopyStream));
		copy->streams[0].node_id = copy->table->node_id;
	}
	else
	{
		TesseraTargets *owners = tessera_routing_owners(copy->routing, copy->group);

		copy->nstreams = owners->n;
		copy->streams = palloc0(sizeof(TesseraCopyStream) * owners->n);
		for (int i = 0; i < owners->n; i++)
			copy->streams[i].node_id = owners->node_ids[i];
	}
	copy->local = NULL;
	for (int i = 0; i < copy->nstreams; i++)
		if (copy->streams[i].node_id == copy->routing->self)
			copy->local = &copy->streams[i];
	settle_snapshot(copy);
	return true;
}

static void
keep_answer(TesseraCommand *command, PGresult *result)
{
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		*(bool *) command->arg = PQntuples(result) == 1 && PQgetvalue(result, 0, 0)[0] == 't';
		PQclear(result);
	}
	else if (PQresultStatus(result) == PGRES_PIPELINE_ABORTED || command->error != NULL)
		PQclear(result);
	else
		command->error = result;
}

/*
 * True if all shards accept the versions. Their answer holds until the transaction ends: they hold the table's lock, and the gate's if there is one.
 */
static bool
shards_accept(TesseraRoute *route, TesseraShardRunRequest *request)
{
	Copy	   *copy = route->owner;
	TesseraRoutedBy routed = {.routing = copy->routing};
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	TesseraCommand *commands = palloc0(sizeof(TesseraCommand) * copy->nstreams);
	bool	   *accepted = palloc0(sizeof(bool) * copy->nstreams);
	const char **values = palloc0(sizeof(char *) * 2);
	TesseraConnection **connections = palloc0(sizeof(TesseraConnection *) * copy->nstreams);
	bool		all = true;

	values[0] = tessera_quote_qualified(get_namespace_name(RelationGetNamespace(copy->rel)), RelationGetRelationName(copy->rel));
	if (copy->group)
		values[1] = tessera_uuid_text(&copy->group->group_id);
	for (int i = 0; i < copy->nstreams; i++)
	{
		TesseraToldVersion versions[TESSERA_TOLD_VERSIONS];
		TesseraCommandNeeds needs = {.versions = versions};

		if (&copy->streams[i] == copy->local)
			continue;
		needs.nversions = tessera_told_versions(copy->routing, copy->table, copy->streams[i].node_id, versions);
		connections[i] = tessera_participant(copy->routing, copy->streams[i].node_id, &needs);
		commands[i].sql = tessera_call_text(&tessera_call_specs[TESSERA_CALL_COPY_CHECK], tessera_connection_protocol(connections[i]),
											&commands[i].nparams);
		commands[i].values = values;
		commands[i].prepare = true;
		commands[i].handler = keep_answer;
		commands[i].arg = &accepted[i];
		tessera_connection_queue(connections[i], &commands[i]);
		tessera_connection_sync(connections[i]);
	}
	MemoryContextSwitchTo(before);
	for (int i = 0; i < copy->nstreams; i++)
	{
		if (connections[i] == NULL)
			continue;
		tessera_connection_finish(connections[i], &commands[i]);
		tessera_connection_check(connections[i], &commands[i]);
		all = all && accepted[i];
	}
	if (all && copy->local)
		all = tessera_shard_check_table(RelationGetRelid(copy->rel), &routed) == TESSERA_ACCEPTED;
	return all;
}

static void
accept(Copy *copy)
{
	TesseraRoute route = {.owner = copy, .choose = find_streams, .start = shards_accept};
	TesseraShardRunRequest request = {0};

	(void) tessera_route(&route, NULL, &request);
}

/* ---- what the shards are told ---- */

/*
 * True if input lines can be sent on unchanged. Then nothing may be left for the router to do: no WHERE, and no default whose value depends on time
 * or node.
 */
static bool
lines_will_do(Copy *copy, List *where)
{
	if (copy->input->opts.binary || where != NIL)
		return false;
	for (int i = 0; i < copy->input->num_defaults; i++)
		if (contain_mutable_functions(build_column_default(copy->rel, copy->input->defmap[i] + 1)))
			return false;
	for (int i = 0; copy->group && i < copy->table->nkeys; i++)
	{
		int			position = 0;
		ListCell   *cell;

		copy->key_fields[i] = -1;
		foreach(cell, copy->input->attnumlist)
		{
			if (lfirst_int(cell) == copy->table->keys[i])
				copy->key_fields[i] = position;
			position++;
		}
		if (copy->key_fields[i] < 0)
			return false;
	}
	return copy->input->attnumlist != NIL;
}

static void
append_names(StringInfo sql, const char *option, List *names)
{
	ListCell   *cell;

	if (names == NIL)
		return;
	appendStringInfo(sql, ", %s (", option);
	foreach(cell, names)
		appendStringInfo(sql, "%s%s", foreach_current_index(cell) ? ", " : "", tessera_quote(strVal(lfirst(cell))));
	appendStringInfoChar(sql, ')');
}

static void
append_line_options(StringInfo sql, const CopyFormatOptions *options)
{
	appendStringInfo(sql, "FORMAT %s, DELIMITER %s, NULL %s", options->csv_mode ? "csv" : "text", quote_literal_cstr(options->delim),
					 quote_literal_cstr(options->null_print));
	if (options->csv_mode)
	{
		char		quote[2] = {options->quote[0], '\0'};
		char		escape[2] = {options->escape[0], '\0'};

		appendStringInfo(sql, ", QUOTE %s, ESCAPE %s", quote_literal_cstr(quote), quote_literal_cstr(escape));
		append_names(sql, "FORCE_NOT_NULL", options->force_notnull);
		append_names(sql, "FORCE_NULL", options->force_null);
	}
	appendStringInfo(sql, ", ENCODING %s", quote_literal_cstr(pg_encoding_to_char(GetDatabaseEncoding())));
}

/*
 * COPY table (columns) FROM STDIN (options). FREEZE is not among them: it only saves a later vacuum work, and a shard did not make the table just
 * now.
 */
static void
make_sql(Copy *copy, List *columns)
{
	StringInfoData sql;
	ListCell   *cell;

	initStringInfo(&sql);
	appendStringInfo(&sql, "COPY %s",
					 tessera_quote_qualified(get_namespace_name(RelationGetNamespace(copy->rel)), RelationGetRelationName(copy->rel)));
	foreach(cell, columns)
		appendStringInfo(&sql, "%s%s", foreach_current_index(cell) ? ", " : " (",
						 tessera_quote(NameStr(TupleDescAttr(RelationGetDescr(copy->rel), lfirst_int(cell) - 1)->attname)));
	appendStringInfoString(&sql, columns ? ") FROM STDIN (" : " FROM STDIN (");
	if (copy->raw)
		append_line_options(&sql, &copy->input->opts);
	else if (copy->row->binary)
		appendStringInfoString(&sql, "FORMAT binary");
	else
		appendStringInfo(&sql, "FORMAT text, ENCODING %s", quote_literal_cstr(pg_encoding_to_char(GetDatabaseEncoding())));
	appendStringInfoChar(&sql, ')');
	copy->sql = sql.data;
}

/* ---- input ---- */

/* Defaults that the server made ready for itself use this node's own sequences. */
static void
replace_defaults(Copy *copy)
{
	MemoryContext before;

	if (tessera_route_default == NULL)
		return;
	before = MemoryContextSwitchTo(copy->input->copycontext);
	for (int i = 0; i < copy->input->num_defaults; i++)
	{
		Node	   *expression = tessera_route_default(build_column_default(copy->rel, copy->input->defmap[i] + 1));

		copy->input->defexprs[i] = ExecInitExpr(expression_planner((Expr *) expression), NULL);
	}
	MemoryContextSwitchTo(before);
}

/* FREEZE is for a table that only this transaction can see: what core refuses is refused, though no row is frozen (make_sql). */
static void
check_freeze(const Copy *copy)
{
	SubTransactionId current = GetCurrentSubTransactionId();

	if (!copy->input->opts.freeze)
		return;
	if (copy->rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("COPY FREEZE is not for partitioned tables"),
				 errhint("Copy into the partitions, or without FREEZE.")));
	if (copy->rel->rd_createSubid != current && copy->rel->rd_newRelfilenodeSubid != current)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("COPY FREEZE is for a table that was created or truncated in the current subtransaction"),
				 errhint("Copy without FREEZE.")));
}

static void
open_input(Copy *copy, CopyStmt *statement, ParseState *pstate)
{
	TupleDesc	desc = RelationGetDescr(copy->rel);

	copy->input = BeginCopyFrom(pstate, copy->rel, NULL, statement->filename, statement->is_program, NULL, statement->attlist, statement->options);
	check_freeze(copy);
	copy->context.callback = CopyFromErrorCallback;
	copy->context.arg = copy->input;
	copy->context.previous = error_context_stack;
	copy->estate = CreateExecutorState();
	copy->econtext = GetPerTupleExprContext(copy->estate);
	copy->values = palloc0(sizeof(Datum) * Max(desc->natts, 1));
	copy->nulls = palloc0(sizeof(bool) * Max(desc->natts, 1));
}

static void
begin_input(Copy *copy, CopyStmt *statement, List *where, ParseState *pstate)
{
	TupleDesc	desc = RelationGetDescr(copy->rel);
	List	   *columns = NIL;

	open_input(copy, statement, pstate);
	copy->raw = lines_will_do(copy, where);
	if (copy->raw)
		columns = copy->input->attnumlist;
	else
	{
		for (int i = 0; i < desc->natts; i++)
			if (!TupleDescAttr(desc, i)->attisdropped && !TupleDescAttr(desc, i)->attgenerated)
				columns = lappend_int(columns, i + 1);
		/* The server's own COPY reads binary rows in the client's encoding, so they go as text where that is not the database's. */
		copy->row = tessera_copy_row_make(desc, columns, copy->local == NULL || tessera_wire_same_encoding());
		replace_defaults(copy);
		copy->slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
		copy->where = ExecInitQual(where, NULL);
	}
	make_sql(copy, columns);
}

_Noreturn static void
raise_null_key(Copy *copy, int key)
{
	ereport(ERROR,
			(errcode(ERRCODE_NOT_NULL_VIOLATION),
			 errmsg("null value in column \"%s\" of relation \"%s\" violates not-null constraint",
					NameStr(TupleDescAttr(RelationGetDescr(copy->rel), copy->table->keys[key] - 1)->attname), RelationGetRelationName(copy->rel)),
			 errtable(copy->rel)));
}

/* The key columns' values, from a line's fields. */
static void
keys_of_fields(Copy *copy, char **fields, int nfields, Datum *keys)
{
	CopyFromState input = copy->input;

	for (int i = 0; i < copy->table->nkeys; i++)
	{
		int			column = copy->table->keys[i] - 1;
		Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(copy->rel), column);
		char	   *field;

		if (copy->key_fields[i] >= nfields)
			ereport(ERROR,
					(errcode(ERRCODE_BAD_COPY_FILE_FORMAT),
					 errmsg("missing data for column \"%s\"", NameStr(attribute->attname))));
		field = fields[copy->key_fields[i]];
		if (input->opts.csv_mode)
		{
			if (field == NULL && input->opts.force_notnull_flags[column])
				field = input->opts.null_print;
			else if (field != NULL && input->opts.force_null_flags[column] && strcmp(field, input->opts.null_print) == 0)
				field = NULL;
		}
		if (field == NULL)
			raise_null_key(copy, i);
		input->cur_attname = NameStr(attribute->attname);
		input->cur_attval = field;
		keys[i] = InputFunctionCall(&input->in_functions[column], field, input->typioparams[column], attribute->atttypmod);
		input->cur_attname = NULL;
		input->cur_attval = NULL;
	}
}

static void
keys_of_values(Copy *copy, Datum *keys)
{
	for (int i = 0; i < copy->table->nkeys; i++)
	{
		int			column = copy->table->keys[i] - 1;

		if (copy->nulls[column])
			raise_null_key(copy, i);
		keys[i] = copy->values[column];
	}
}

/* The stream of a row with these keys. */
static TesseraCopyStream *
stream_of(Copy *copy, const Datum *keys)
{
	int32		owner;

	if (copy->group == NULL)
		return &copy->streams[0];
	owner = tessera_routing_owner(copy->routing, copy->group, keys);
	if (copy->streams[copy->last].node_id == owner)
		return &copy->streams[copy->last];
	for (int i = 0; i < copy->nstreams; i++)
		if (copy->streams[i].node_id == owner)
		{
			copy->last = i;
			return &copy->streams[i];
		}
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("no stream to node %d, which owns the row's key", owner)));
}

static TesseraCopyStream *
open_stream(Copy *copy, TesseraCopyStream *stream)
{
	if (stream == copy->local)
	{
		if (!copy->local_started && copy->row)
			tessera_copy_row_header(copy->row, &stream->buffer);
		copy->local_started = true;
	}
	else if (stream->connection == NULL)
	{
		TesseraToldVersion versions[TESSERA_TOLD_VERSIONS];
		int			n = tessera_told_versions(copy->routing, copy->table, stream->node_id, versions);
		MemoryContext before = MemoryContextSwitchTo(copy->estate->es_query_cxt);

		tessera_copy_stream_open(stream, copy->routing, n, versions, copy->sql);
		if (copy->row)
			tessera_copy_row_header(copy->row, &stream->buffer);
		MemoryContextSwitchTo(before);
	}
	return stream;
}

static bool
read_line(Copy *copy, TesseraCopyStream **stream)
{
	Datum		keys[TESSERA_MAX_KEY_COLUMNS];
	char	  **fields;
	int			nfields;

	if (!NextCopyFromRawFields(copy->input, &fields, &nfields))
		return false;
	if (copy->group)
		keys_of_fields(copy, fields, nfields, keys);
	*stream = open_stream(copy, stream_of(copy, keys));
	appendBinaryStringInfo(&(*stream)->buffer, copy->input->line_buf.data, copy->input->line_buf.len);
	appendStringInfoCharMacro(&(*stream)->buffer, '\n');
	return true;
}

static bool
passes_where(Copy *copy)
{
	if (copy->where == NULL)
		return true;
	ExecClearTuple(copy->slot);
	memcpy(copy->slot->tts_values, copy->values, sizeof(Datum) * RelationGetDescr(copy->rel)->natts);
	memcpy(copy->slot->tts_isnull, copy->nulls, sizeof(bool) * RelationGetDescr(copy->rel)->natts);
	ExecStoreVirtualTuple(copy->slot);
	copy->econtext->ecxt_scantuple = copy->slot;
	return ExecQual(copy->where, copy->econtext);
}

static bool
read_values(Copy *copy, TesseraCopyStream **stream)
{
	Datum		keys[TESSERA_MAX_KEY_COLUMNS];

	do
	{
		CHECK_FOR_INTERRUPTS();
		ResetPerTupleExprContext(copy->estate);
		if (!NextCopyFrom(copy->input, copy->econtext, copy->values, copy->nulls))
			return false;
	} while (!passes_where(copy));
	if (copy->group)
		keys_of_values(copy, keys);
	*stream = open_stream(copy, stream_of(copy, keys));
	tessera_copy_row_append(copy->row, &(*stream)->buffer, copy->values, copy->nulls);
	return true;
}

/* Reads one row into its stream's buffer; NULL at the end. */
static TesseraCopyStream *
read_row(Copy *copy)
{
	ErrorContextCallback *stack = error_context_stack;
	MemoryContext before = MemoryContextSwitchTo(GetPerTupleMemoryContext(copy->estate));
	TesseraCopyStream *stream = NULL;
	bool		found;

	error_context_stack = &copy->context;
	CHECK_FOR_INTERRUPTS();
	ResetPerTupleExprContext(copy->estate);
	found = copy->raw ? read_line(copy, &stream) : read_values(copy, &stream);
	error_context_stack = stack;
	MemoryContextSwitchTo(before);
	return found ? stream : NULL;
}

/* ---- this node's own rows ---- */

/* More rows of this shard, reading past those of others. One row at a time, so that the server's COPY counts the input's own lines. */
static int
feed_local(void *out, int minread, int maxread)
{
	Copy	   *copy = current;
	StringInfo	buffer = &copy->local->buffer;
	int			n;

	while (copy->local_offset >= buffer->len && !copy->ended)
	{
		TesseraCopyStream *stream;

		resetStringInfo(buffer);
		copy->local_offset = 0;
		if (copy->row && !copy->local_started)
			open_stream(copy, copy->local);	/* the header is wanted even if no row follows */
		else if ((stream = read_row(copy)) == NULL)
		{
			copy->ended = true;
			if (copy->row)
				tessera_copy_row_trailer(copy->row, buffer);
		}
		else if (stream == copy->local)
			copy->local_input->cur_lineno = copy->input->cur_lineno;
		else
			tessera_copy_stream_flush(stream, false);
	}
	n = Min(maxread, buffer->len - copy->local_offset);
	memcpy(out, buffer->data + copy->local_offset, n);
	copy->local_offset += n;
	return n;
}

/* The server's own COPY, of what the callback gives. */
static void
copy_locally(Copy *copy)
{
	CopyStmt   *statement = (CopyStmt *) linitial_node(RawStmt, raw_parser(copy->sql, RAW_PARSE_DEFAULT))->stmt;
	ParseState *pstate = make_parsestate(NULL);
	ParseNamespaceItem *item = addRangeTableEntryForRelation(pstate, copy->rel, RowExclusiveLock, NULL, false, false);
	TesseraCopyWatch watch;

	pstate->p_sourcetext = copy->sql;
	tessera_item_permissions(item)->requiredPerms = ACL_INSERT;
	tessera_copy_watch_begin(&watch, copy->rel);
	initStringInfo(&copy->local->buffer);
	copy->local_input = BeginCopyFrom(pstate, copy->rel, NULL, NULL, false, feed_local, statement->attlist, statement->options);
	copy->local->processed = CopyFrom(copy->local_input);
	tessera_copy_watch_end(&watch, copy->local->processed);
	EndCopyFrom(copy->local_input);
	free_parsestate(pstate);
	/* It may have seen its own end of data before ours. */
	while (!copy->ended && read_row(copy) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("COPY ended before its input")));
}

/* ---- triggers on the router ---- */

#define COPIED_ROWS "tessera copied rows"

/* INSERT of the copied columns, which gives the others their defaults. */
static char *
insert_text(Copy *copy)
{
	StringInfoData names;
	ListCell   *cell;

	initStringInfo(&names);
	foreach(cell, copy->input->attnumlist)
		appendStringInfo(&names, "%s%s", foreach_current_index(cell) ? ", " : "",
						 tessera_quote(NameStr(TupleDescAttr(RelationGetDescr(copy->rel), lfirst_int(cell) - 1)->attname)));
	return psprintf("INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s", tessera_qualified_name(RelationGetRelid(copy->rel)),
					names.data, names.data, tessera_quote(COPIED_ROWS));
}

/* The input's rows into the tuple store; the INSERT computes defaults. */
static void
keep_rows(Copy *copy, Tuplestorestate *rows)
{
	copy->input->num_defaults = 0;
	for (;;)
	{
		ErrorContextCallback *stack = error_context_stack;
		MemoryContext before = MemoryContextSwitchTo(GetPerTupleMemoryContext(copy->estate));
		bool		found;

		CHECK_FOR_INTERRUPTS();
		ResetPerTupleExprContext(copy->estate);
		error_context_stack = &copy->context;
		found = NextCopyFrom(copy->input, copy->econtext, copy->values, copy->nulls);
		if (found && passes_where(copy))
			tuplestore_putvalues(rows, RelationGetDescr(copy->rel), copy->values, copy->nulls);
		error_context_stack = stack;
		MemoryContextSwitchTo(before);
		if (!found)
			break;
	}
}

/* All of the input as one INSERT, whose triggers fire on the router. Returns rows processed. */
static uint64
insert_with_triggers(CopyStmt *statement, Relation rel, List *where, ParseState *pstate)
{
	Copy		copy = {.rel = rel};
	EphemeralNamedRelationData rows = {
		.md = {.name = COPIED_ROWS, .reliddesc = RelationGetRelid(rel), .enrtype = ENR_NAMED_TUPLESTORE},
	};
	Tuplestorestate *store = tuplestore_begin_heap(false, false, work_mem);
	uint64		processed;

	open_input(&copy, statement, pstate);
	copy.slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsVirtual);
	copy.where = ExecInitQual(where, NULL);
	keep_rows(&copy, store);
	rows.reldata = store;
	rows.md.enrtuples = tuplestore_tuple_count(store);
	if (SPI_connect() != SPI_OK_CONNECT || SPI_register_relation(&rows) != SPI_OK_REL_REGISTER ||
		SPI_execute(insert_text(&copy), false, 0) != SPI_OK_INSERT)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not insert the copied rows")));
	processed = SPI_processed;
	SPI_finish();
	EndCopyFrom(copy.input);
	ExecDropSingleTupleTableSlot(copy.slot);
	FreeExecutorState(copy.estate);
	tuplestore_end(store);
	return processed;
}

/* ---- the whole ---- */

static uint64
copy_rows(Copy *copy)
{
	uint64		processed = 0;
	TesseraCopyStream *stream;

	if (copy->local)
		copy_locally(copy);
	else
		while ((stream = read_row(copy)) != NULL)
			tessera_copy_stream_flush(stream, false);

	for (int i = 0; i < copy->nstreams; i++)
		if (copy->streams[i].connection)
		{
			if (copy->row)
				tessera_copy_row_trailer(copy->row, &copy->streams[i].buffer);
			tessera_copy_stream_end(&copy->streams[i]);
		}
	for (int i = 0; i < copy->nstreams; i++)
	{
		if (copy->streams[i].connection)
			tessera_copy_stream_finish(&copy->streams[i]);
		processed += copy->streams[i].processed;
	}
	return processed;
}

uint64
tessera_copy_from(CopyStmt *statement, Relation rel, List *where, ParseState *pstate)
{
	Copy		copy = {.rel = rel, .outer = current};
	ErrorContextCallback *stack = error_context_stack;
	uint64		processed = 0;

	if (tessera_fires_on_router(rel, CMD_INSERT) && !tessera_all_rows_are_here(tessera_routing(), RelationGetRelid(rel)))
		return insert_with_triggers(statement, rel, where, pstate);
	accept(&copy);
	current = &copy;
	PG_TRY();
	{
		begin_input(&copy, statement, where, pstate);
		processed = copy_rows(&copy);
		EndCopyFrom(copy.input);
	}
	PG_CATCH();
	{
		current = copy.outer;
		for (int i = 0; i < copy.nstreams; i++)
			tessera_copy_stream_abort(&copy.streams[i]);
		PG_RE_THROW();
	}
	PG_END_TRY();
	current = copy.outer;
	error_context_stack = stack;
	if (copy.slot)
		ExecDropSingleTupleTableSlot(copy.slot);
	FreeExecutorState(copy.estate);
	return processed;
}
