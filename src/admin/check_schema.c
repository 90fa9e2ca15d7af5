/*
 * check_schema.c
 *	  tessera.check_schema: what tessera.check_table tells of a table, for all tables of a schema that can be sharded together, and all the steps that
 *	  take them there, in an order in which they can be run.
 *
 * Each table gets a key first: the columns of the names that were given, or those that foreign keys pair with the key of another table. Tables
 * without one stay placed. One table, the first that others reference, begins the table group, and the others join it.
 *
 * The order of the rows: what no statement mends; foreign keys to drop; for each table, referenced ones first, what mends it and the call that shards
 * it; foreign keys that come back. A table of which something cannot be mended is left as it is, and so are its foreign keys where the other side
 * stays, too.
 *
 * Reads catalogs only, as check_table.c does; the tables are held in ACCESS SHARE to the end of the call.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "admin/admin.h"
#include "admin/shardable.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "ddl/subscription.h"

PG_FUNCTION_INFO_V1(tessera_check_schema);

typedef struct SchemaTable
{
	TesseraIntendedKey key;		/* n = 0: none, it stays placed */
	Relation	rel;			/* held in ACCESS SHARE */
	const TesseraTable *routed; /* NULL: local to this node */
	bool		obstructed;		/* no statement mends it */
	bool		visited;
	TesseraShardable shardable;
	TesseraFindings probed;		/* what is found of it alone */
} SchemaTable;

typedef struct SchemaForeignKey
{
	int			referencing;	/* positions of the tables */
	int			referenced;
	int			n;
	const int16 *referencing_columns;
	const int16 *referenced_columns;
} SchemaForeignKey;

/* One call. Everything lives in the function's memory context. */
typedef struct SchemaCheck
{
	const TesseraRouting *routing;
	const char *schema;
	const char *key_text;
	List	   *key_names;
	bool		hashed;
	Oid			with;			/* colocate_with, or InvalidOid */
	List	   *subscribed;
	int			n;
	SchemaTable *tables;
	int			nforeign_keys;
	SchemaForeignKey *foreign_keys;
	SchemaTable **order;		/* those with a key: referenced ones first, the root before all */
	int			nordered;
	Oid			root;			/* the table with which the others are colocated */
	List	   *intended;		/* of TesseraIntendedKey */
} SchemaCheck;


/* The tables and their foreign keys */

/* Those that may be sharded: no partitions, nothing of an extension. */
static const char tables_sql[] =
"SELECT c.oid FROM pg_class AS c WHERE c.relnamespace = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'"
" AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e') ORDER BY c.relname";

static const char foreign_keys_sql[] =
"SELECT f.conrelid, f.confrelid, f.conkey, f.confkey FROM pg_constraint AS f JOIN pg_class AS a ON a.oid = f.conrelid"
" JOIN pg_class AS b ON b.oid = f.confrelid WHERE f.contype = 'f' AND f.conparentid = 0 AND a.relnamespace = $1 AND b.relnamespace = $1"
" ORDER BY f.conname, a.relname";

/* The caller must own each table, before it is locked and after. */
static void
add_table(SchemaCheck *check, Oid relid)
{
	SchemaTable *table = &check->tables[check->n];

	if (get_rel_name(relid) == NULL)
		return;
	tessera_require_table_owner(relid);
	table->rel = try_relation_open(relid, AccessShareLock);
	if (table->rel == NULL)
		return;
	tessera_require_table_owner(relid);
	table->key.relid = relid;
	table->routed = tessera_routing_table(check->routing, relid);
	check->n++;
}

static void
read_tables(SchemaCheck *check, Oid schema)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum		value = ObjectIdGetDatum(schema);
	List	   *relids = NIL;
	ListCell   *cell;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run(tables_sql, SPI_OK_SELECT, 1, (Oid[]) {OIDOID}, &value, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		Oid			relid = DatumGetObjectId(spi_row_value(i, 1));
		MemoryContext old = MemoryContextSwitchTo(caller);

		relids = lappend_oid(relids, relid);
		MemoryContextSwitchTo(old);
	}
	tessera_spi_end(&spi);

	check->tables = palloc0(sizeof(SchemaTable) * Max(list_length(relids), 1));
	foreach(cell, relids)
		add_table(check, lfirst_oid(cell));
}

/* Position of a table; -1: it is none of them. */
static int
position_of(const SchemaCheck *check, Oid relid)
{
	for (int i = 0; i < check->n; i++)
		if (check->tables[i].key.relid == relid)
			return i;
	return -1;
}

static int
column_numbers(Datum datum, const int16 **columns)
{
	ArrayType  *array = DatumGetArrayTypePCopy(datum);

	*columns = (const int16 *) ARR_DATA_PTR(array);
	return ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
}

static void
read_foreign_keys(SchemaCheck *check, Oid schema)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum		value = ObjectIdGetDatum(schema);
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run(foreign_keys_sql, SPI_OK_SELECT, 1, (Oid[]) {OIDOID}, &value, NULL);
	check->foreign_keys = MemoryContextAllocZero(caller, sizeof(SchemaForeignKey) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		SchemaForeignKey *fk = &check->foreign_keys[check->nforeign_keys];
		MemoryContext old = MemoryContextSwitchTo(caller);

		fk->referencing = position_of(check, DatumGetObjectId(spi_row_value(i, 1)));
		fk->referenced = position_of(check, DatumGetObjectId(spi_row_value(i, 2)));
		fk->n = column_numbers(spi_row_value(i, 3), &fk->referencing_columns);
		if (fk->referencing >= 0 && fk->referenced >= 0 && column_numbers(spi_row_value(i, 4), &fk->referenced_columns) == fk->n)
			check->nforeign_keys++;
		MemoryContextSwitchTo(old);
	}
	tessera_spi_end(&spi);
}


/* Keys */

static bool
is_sharded(const SchemaTable *table)
{
	return table->routed != NULL && table->routed->group >= 0;
}

/* The columns of the names, if the table has all. */
static bool
named_columns(const SchemaCheck *check, Oid relid, AttrNumber *attnums)
{
	ListCell   *cell;
	int			n = 0;

	foreach(cell, check->key_names)
	{
		attnums[n] = get_attnum(relid, lfirst(cell));
		if (attnums[n++] <= 0)
			return false;
	}
	return true;
}

/* A sharded table has its own key; another one the columns of the names, if it has all. A replicated table gets none. False: no such columns. */
static bool
key_by_names(const SchemaCheck *check, SchemaTable *table)
{
	bool		named = named_columns(check, table->key.relid, table->key.attnums);

	if (is_sharded(table))
	{
		table->key.n = table->routed->nkeys;
		memcpy(table->key.attnums, table->routed->keys, sizeof(AttrNumber) * table->key.n);
	}
	else if (named && (table->routed == NULL || !table->routed->replicated))
		table->key.n = list_length(check->key_names);
	return named;
}

/* The columns of one side that are paired with the key of the other one. false: not all are. */
static bool
key_by_pairs(const TesseraIntendedKey *known, const int16 *known_columns, const int16 *columns, int n, TesseraIntendedKey *key)
{
	for (int k = 0; k < known->n; k++)
	{
		key->attnums[k] = InvalidAttrNumber;
		for (int i = 0; i < n && key->attnums[k] == InvalidAttrNumber; i++)
			if (known_columns[i] == known->attnums[k])
				key->attnums[k] = columns[i];
		if (key->attnums[k] == InvalidAttrNumber)
			return false;
	}
	key->n = known->n;
	return true;
}

static bool
may_get_key(const SchemaCheck *check, const SchemaTable *table)
{
	return table->key.n == 0 && table->routed != NULL && !table->routed->replicated;
}

static void
find_keys(SchemaCheck *check)
{
	bool		found = false;

	for (int i = 0; i < check->n; i++)
		found |= key_by_names(check, &check->tables[i]);
	if (!found)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("no table of schema \"%s\" has the columns \"%s\"", check->schema, check->key_text)));
	while (found)
	{
		found = false;
		for (int i = 0; i < check->nforeign_keys; i++)
		{
			const SchemaForeignKey *fk = &check->foreign_keys[i];
			SchemaTable *from = &check->tables[fk->referencing];
			SchemaTable *to = &check->tables[fk->referenced];

			if (from->key.n > 0 && may_get_key(check, to))
				found |= key_by_pairs(&from->key, fk->referencing_columns, fk->referenced_columns, fk->n, &to->key);
			else if (to->key.n > 0 && may_get_key(check, from))
				found |= key_by_pairs(&to->key, fk->referenced_columns, fk->referencing_columns, fk->n, &from->key);
		}
	}
}

static char *
key_columns(const SchemaTable *table)
{
	StringInfoData columns;

	initStringInfo(&columns);
	for (int i = 0; i < table->key.n; i++)
		appendStringInfo(&columns, "%s%s", i > 0 ? ", " : "", tessera_quote(get_attname(table->key.relid, table->key.attnums[i], false)));
	return columns.data;
}


/* The order, and the root */

/* The tables that it references first; a circle ends where it began. */
static void
visit(SchemaCheck *check, int position)
{
	SchemaTable *table = &check->tables[position];

	check_stack_depth();
	if (table->visited || table->key.n == 0)
		return;
	table->visited = true;
	for (int i = 0; i < check->nforeign_keys; i++)
		if (check->foreign_keys[i].referencing == position)
			visit(check, check->foreign_keys[i].referenced);
	check->order[check->nordered++] = table;
}

static void
put_first(SchemaCheck *check, int at)
{
	SchemaTable *first = check->order[at];

	memmove(&check->order[1], &check->order[0], sizeof(*check->order) * at);
	check->order[0] = first;
}

/* All checks of a table by itself; `with`: a sharded table, or InvalidOid. */
static void
probe(SchemaCheck *check, SchemaTable *table, Oid with)
{
	ListCell   *cell;

	table->shardable = (TesseraShardable) {.rel = table->rel, .routing = check->routing, .key_text = key_columns(table), .hashed = check->hashed,
		.with = with, .subscribed = check->subscribed};
	table->probed = (TesseraFindings) {0};
	tessera_shardable(&table->shardable, &table->probed);
	foreach(cell, table->probed.list)
	{
		const TesseraFinding *finding = lfirst(cell);

		table->obstructed |= finding->sqlstate != 0 && finding->statement == NULL;
	}
}

static bool
is_in_group(const SchemaCheck *check, const SchemaTable *table)
{
	const TesseraTable *root = OidIsValid(check->root) ? tessera_routing_table(check->routing, check->root) : NULL;

	return is_sharded(table) && root != NULL && root->group == table->routed->group;
}

/* The sharded table with which the others can be colocated now: that of colocate_with, or the first one; InvalidOid: there is none yet. */
static Oid
sharded_root(const SchemaCheck *check)
{
	const TesseraTable *with = OidIsValid(check->with) ? tessera_routing_table(check->routing, check->with) : NULL;

	if (OidIsValid(check->with))
		return with != NULL && with->group >= 0 ? check->with : InvalidOid;
	for (int i = 0; i < check->nordered; i++)
		if (is_sharded(check->order[i]))
			return check->order[i]->key.relid;
	return InvalidOid;
}

/* Does another table with a key reference it? */
static bool
is_referenced(const SchemaCheck *check, const SchemaTable *table)
{
	for (int i = 0; i < check->nforeign_keys; i++)
	{
		const SchemaTable *referencing = &check->tables[check->foreign_keys[i].referencing];

		if (&check->tables[check->foreign_keys[i].referenced] == table && referencing != table && referencing->key.n > 0)
			return true;
	}
	return false;
}

/* Place in the order of the table that begins the group: the first that others reference, or else the first. -1: none can. */
static int
first_to_shard(const SchemaCheck *check)
{
	int			first = -1;

	for (int i = 0; i < check->nordered; i++)
	{
		if (check->order[i]->obstructed || (OidIsValid(check->with) && check->with != check->order[i]->key.relid))
			continue;
		if (is_referenced(check, check->order[i]))
			return i;
		if (first < 0)
			first = i;
	}
	return first;
}

static void
find_root(SchemaCheck *check)
{
	int			first;

	check->order = palloc(sizeof(*check->order) * check->n);
	for (int i = 0; i < check->n; i++)
		visit(check, i);
	check->root = sharded_root(check);
	for (int i = 0; i < check->nordered; i++)
		if (!is_in_group(check, check->order[i]))
			probe(check, check->order[i], check->root);
	first = OidIsValid(check->root) ? -1 : first_to_shard(check);
	if (first >= 0)
	{
		check->root = check->order[first]->key.relid;
		put_first(check, first);
	}
	if (OidIsValid(check->with) && !OidIsValid(check->root))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("table \"%s\" is not sharded", get_rel_name(check->with)),
				 errhint("Shard it first; tessera.check_table tells what is in the way.")));
	for (int i = 0; i < check->nordered; i++)
		if (!check->order[i]->obstructed)
			check->intended = lappend(check->intended, &check->order[i]->key);
}


/* The rows */

typedef enum Column
{
	SEVERITY,
	TABLE_NAME,
	PROBLEM,
	DROP_FOREIGN_KEY,
	STATEMENT,
	ADD_FOREIGN_KEY,
	NCOLUMNS
} Column;

/* column: where the statement stands, which may be NULL. */
static void
put_row(ReturnSetInfo *result, const char *severity, Oid relid, const char *problem, Column column, const char *statement)
{
	Datum		values[NCOLUMNS] = {0};
	bool		nulls[NCOLUMNS] = {false, false, false, true, true, true};

	values[SEVERITY] = CStringGetTextDatum(severity);
	values[TABLE_NAME] = ObjectIdGetDatum(relid);
	values[PROBLEM] = CStringGetTextDatum(problem);
	if (statement != NULL)
	{
		values[column] = CStringGetTextDatum(statement);
		nulls[column] = false;
	}
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static const char *
severity_of(const TesseraFinding *finding)
{
	return finding->sqlstate != 0 ? "error" : "warning";
}

/* Tables that are left as they are: what is wrong with them, without statements that would only do half of it; and those that have no key. */
static void
put_left_alone(const SchemaCheck *check, ReturnSetInfo *result)
{
	ListCell   *cell;

	for (int i = 0; i < check->nordered; i++)
		foreach(cell, check->order[i]->obstructed ? check->order[i]->probed.list : NIL)
		{
			const TesseraFinding *finding = lfirst(cell);

			if (finding->sqlstate != 0 && finding->statement == NULL)
				put_row(result, severity_of(finding), finding->relid, tessera_finding_text(finding), STATEMENT, NULL);
		}
	for (int i = 0; i < check->n; i++)
		if (may_get_key(check, &check->tables[i]))
			put_row(result, "warning", check->tables[i].key.relid,
					psprintf("table \"%s\" has no columns \"%s\", and no foreign key pairs columns with a shard key. It stays a placed table. If "
							 "tessera.replicate_table copies it to every node, foreign keys of sharded tables to it can stay; else they go",
							 get_rel_name(check->tables[i].key.relid), check->key_text), STATEMENT, NULL);
}

static void
find_in_table(SchemaCheck *check, SchemaTable *table, const SchemaTable *root, TesseraFindings *findings)
{
	TesseraShardable shardable = table->shardable;

	if (root != NULL && root != table)
		tessera_find_differing_keys(&table->shardable, &root->shardable, findings);
	shardable.intended = check->intended;
	tessera_shardable(&shardable, findings);
	tessera_find_differences(&shardable, findings);
}

static char *
shard_statement(const SchemaCheck *check, const SchemaTable *table)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfo(&sql, "SELECT tessera.shard_table(%s, %s", quote_literal_cstr(tessera_qualified_name(table->key.relid)),
					 quote_literal_cstr(table->shardable.key_text));
	if (check->hashed)
		appendStringInfoString(&sql, ", strategy => 'hash'");
	if (check->root != table->key.relid)
		appendStringInfo(&sql, ", colocate_with => %s", quote_literal_cstr(tessera_qualified_name(check->root)));
	appendStringInfoChar(&sql, ')');
	return sql.data;
}

/* A statement of an earlier row is not given again: of tables that inherit from each other both name it. */
static bool
is_given(List **given, const char *statement)
{
	ListCell   *cell;

	if (statement == NULL)
		return false;
	foreach(cell, *given)
		if (strcmp(lfirst(cell), statement) == 0)
			return true;
	*given = lappend(*given, (char *) statement);
	return false;
}

static void
put_table(const SchemaCheck *check, const SchemaTable *table, const TesseraFindings *findings, List **given, ReturnSetInfo *result)
{
	ListCell   *cell;

	foreach(cell, findings->list)
	{
		const TesseraFinding *finding = lfirst(cell);

		if (!OidIsValid(finding->referenced) && !is_given(given, finding->statement))
			put_row(result, severity_of(finding), finding->relid, tessera_finding_text(finding), STATEMENT, finding->statement);
	}
	put_row(result, "step", table->key.relid,
			is_sharded(table) ? psprintf("table \"%s\" is not colocated with table \"%s\"", get_rel_name(table->key.relid),
										 get_rel_name(check->root)) :
			psprintf("table \"%s\" is not sharded", get_rel_name(table->key.relid)), STATEMENT, shard_statement(check, table));
}

static void
put_dropped(const TesseraFindings *findings, ReturnSetInfo *result)
{
	ListCell   *cell;

	foreach(cell, findings->list)
	{
		const TesseraFinding *finding = lfirst(cell);

		if (OidIsValid(finding->referenced))
			put_row(result, severity_of(finding), finding->relid, tessera_finding_text(finding), DROP_FOREIGN_KEY, finding->statement);
	}
}

/* Is it sharded in the group, or will it be by the rows before? A partition is what its root is. */
static bool
will_be_sharded(const SchemaCheck *check, Oid relid)
{
	const TesseraTable *routed = tessera_routing_table(check->routing, relid);
	const TesseraTable *root = tessera_routing_table(check->routing, check->root);
	int			position = position_of(check, routed != NULL ? routed->root : relid);

	if (routed != NULL && root != NULL && root->group >= 0 && routed->group == root->group)
		return true;
	return position >= 0 && check->tables[position].key.n > 0 && !check->tables[position].obstructed;
}

static void
put_restored(const SchemaCheck *check, const TesseraFindings *findings, ReturnSetInfo *result)
{
	ListCell   *cell;

	foreach(cell, findings->list)
	{
		const TesseraFinding *finding = lfirst(cell);

		if (finding->restore != NULL && will_be_sharded(check, finding->relid) && will_be_sharded(check, finding->referenced))
			put_row(result, "step", finding->relid, psprintf("foreign key \"%s\" comes back with the shard key in it", finding->constraint),
					ADD_FOREIGN_KEY, finding->restore);
	}
}

static void
put_rows(SchemaCheck *check, ReturnSetInfo *result)
{
	TesseraFindings *of_tables = palloc0(sizeof(TesseraFindings) * Max(check->nordered, 1));
	const SchemaTable *root = OidIsValid(check->root) && !OidIsValid(sharded_root(check)) ? check->order[0] : NULL;
	List	   *foreign_keys = NIL;
	List	   *given = NIL;

	put_left_alone(check, result);
	for (int i = 0; i < check->nordered; i++)
		if (!check->order[i]->obstructed && !is_in_group(check, check->order[i]))
		{
			of_tables[i].foreign_keys = foreign_keys;
			find_in_table(check, check->order[i], root, &of_tables[i]);
			foreign_keys = of_tables[i].foreign_keys;
		}
	for (int i = 0; i < check->nordered; i++)
		put_dropped(&of_tables[i], result);
	for (int i = 0; i < check->nordered; i++)
		if (!check->order[i]->obstructed && !is_in_group(check, check->order[i]))
			put_table(check, check->order[i], &of_tables[i], &given, result);
	for (int i = 0; i < check->nordered; i++)
		put_restored(check, &of_tables[i], result);
}

static void
read_key_names(SchemaCheck *check)
{
	if (!SplitIdentifierString(pstrdup(check->key_text), ',', &check->key_names))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("invalid shard key \"%s\"", check->key_text),
				 errhint("Name its columns, separated by commas.")));
	if (check->key_names == NIL || list_length(check->key_names) > TESSERA_MAX_KEY_COLUMNS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a shard key has 1 to %d columns, not %d", TESSERA_MAX_KEY_COLUMNS, list_length(check->key_names))));
}

/*
 * check_schema(schema_name text, key text, strategy text, colocate_with regclass)
 * returns table (severity, table_name, problem, drop_foreign_key, statement, add_foreign_key)
 */
Datum
tessera_check_schema(PG_FUNCTION_ARGS)
{
	SchemaCheck check = {0};
	Oid			schema;

	for (int i = 0; i < 3; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("schema_name, key and strategy must not be null")));
	InitMaterializedSRF(fcinfo, 0);
	check.schema = text_to_cstring(PG_GETARG_TEXT_PP(0));
	schema = LookupExplicitNamespace(check.schema, false);
	check.key_text = text_to_cstring(PG_GETARG_TEXT_PP(1));
	read_key_names(&check);
	check.hashed = tessera_strategy_is_hash(text_to_cstring(PG_GETARG_TEXT_PP(2)));
	check.with = PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3);
	if (OidIsValid(check.with))
		tessera_require_table_owner(check.with);
	check.routing = tessera_sharding_routing();
	check.subscribed = tessera_subscribed_anywhere(check.routing);

	read_tables(&check, schema);
	read_foreign_keys(&check, schema);
	find_keys(&check);
	find_root(&check);
	put_rows(&check, (ReturnSetInfo *) fcinfo->resultinfo);
	for (int i = 0; i < check.n; i++)
		relation_close(check.tables[i].rel, AccessShareLock);
	return (Datum) 0;
}
