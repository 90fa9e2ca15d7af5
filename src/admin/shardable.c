/*
 * shardable.c
 *	  Checks whether a table can be sharded by a key (doc/design.md#bounds, doc/design.md#ddl-differences). See shardable.h.
 *
 * A constraint that one shard checks alone holds for the cluster only if all rows it compares lie on one shard: so it must contain the key, compared
 * by equality. The same schema is on every node, so the checks are made on the node that was asked. Each check adds what it finds to a list, with the
 * statement that mends it; nothing here writes. The caller holds a lock that keeps DDL off the table, if it is going to act on the answer.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/partition.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_rewrite.h"
#include "commands/defrem.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"
#include "utils/typcache.h"
#include "utils/varlena.h"

#include "admin/shardable.h"
#include "catalog/key_index.h"
#include "catalog/relation.h"
#include "common/fixed_settings.h"
#include "common/subtransaction.h"
#include "common/text.h"
#include "ddl/subscription.h"
#include "routing/key_comparison.h"


/* The table itself */

static void
refuse_kind(TesseraFindings *findings, Relation rel, int sqlstate, const char *what, const char *hint, const char *statement)
{
	tessera_finding(findings, sqlstate, RelationGetRelid(rel), psprintf("table \"%s\" cannot be sharded: %s", RelationGetRelationName(rel), what),
					NULL, hint, statement);
}

/* Rows that come by logical replication are refused in every table of the cluster; here their subscription is told before that. */
static void
find_subscriptions(Relation rel, List *subscribed, TesseraFindings *findings)
{
	List	   *partitions = tessera_partitions(RelationGetRelid(rel), NoLock);
	ListCell   *cell;

	foreach(cell, subscribed)
	{
		const TesseraSubscribed *by = lfirst(cell);

		if (by->relid == RelationGetRelid(rel) || list_member_oid(partitions, by->relid))
			tessera_finding(findings, ERRCODE_FEATURE_NOT_SUPPORTED, by->relid,
							psprintf("table \"%s\" cannot be sharded: subscription \"%s\" of node \"%s\" writes into it", get_rel_name(by->relid),
									 by->subscription, by->node), NULL,
							"Take it out of the publication, then ALTER SUBSCRIPTION ... REFRESH PUBLICATION on that node; or drop the subscription.",
							NULL);
	}
}

static void
refuse_inheritance(Relation rel, TesseraFindings *findings, Oid child, Oid parent)
{
	tessera_finding(findings, ERRCODE_FEATURE_NOT_SUPPORTED, child,
					psprintf("table \"%s\" cannot be sharded: table inheritance is not supported", RelationGetRelationName(rel)), NULL,
					"ALTER TABLE ... NO INHERIT.",
					psprintf("ALTER TABLE %s NO INHERIT %s", tessera_qualified_name(child), tessera_qualified_name(parent)));
}

/* A finding for each parent and each child. */
static void
find_inheritance(Relation rel, TesseraFindings *findings)
{
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);
	ScanKeyData condition;
	SysScanDesc scan;
	HeapTuple	tuple;
	ListCell   *cell;

	ScanKeyInit(&condition, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(RelationGetRelid(rel)));
	scan = systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true, NULL, 1, &condition);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		refuse_inheritance(rel, findings, RelationGetRelid(rel), ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent);
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);
	foreach(cell, find_inheritance_children(RelationGetRelid(rel), NoLock))
		refuse_inheritance(rel, findings, lfirst_oid(cell), RelationGetRelid(rel));
}

static void
find_rules(Relation rel, TesseraFindings *findings)
{
	Relation	rewrite = table_open(RewriteRelationId, AccessShareLock);
	ScanKeyData condition;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&condition, Anum_pg_rewrite_ev_class, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(RelationGetRelid(rel)));
	scan = systable_beginscan(rewrite, RewriteRelRulenameIndexId, true, NULL, 1, &condition);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		refuse_kind(findings, rel, ERRCODE_FEATURE_NOT_SUPPORTED, "it has rules", "Drop them, or use triggers.",
					psprintf("DROP RULE %s ON %s", tessera_quote(NameStr(((Form_pg_rewrite) GETSTRUCT(tuple))->rulename)),
							 tessera_qualified_name(RelationGetRelid(rel))));
	systable_endscan(scan);
	table_close(rewrite, AccessShareLock);
}

/* A table named by itself: a partition is sharded with its parent. */
static bool
find_partition(Relation rel, TesseraFindings *findings)
{
	List	   *ancestors;
	const char *root;

	if (!rel->rd_rel->relispartition)
		return false;
	ancestors = get_partition_ancestors(RelationGetRelid(rel));
	root = ancestors != NIL && get_rel_name(llast_oid(ancestors)) ? get_rel_name(llast_oid(ancestors)) : "?";
	refuse_kind(findings, rel, ERRCODE_INVALID_TABLE_DEFINITION, psprintf("it is a partition of table \"%s\"", root),
				psprintf("Shard table \"%s\": that covers its partitions.", root), NULL);
	return true;
}

/* false: it is no table that could be made fit. */
static bool
find_kind(Relation rel, TesseraFindings *findings)
{
	Form_pg_class form = rel->rd_rel;

	if (form->relkind == RELKIND_FOREIGN_TABLE && form->relispartition)
	{
		refuse_kind(findings, rel, ERRCODE_FEATURE_NOT_SUPPORTED, "it is a foreign table", "Detach it from the partitioned table.", NULL);
		return false;
	}
	if (form->relkind != RELKIND_RELATION && form->relkind != RELKIND_PARTITIONED_TABLE)
	{
		tessera_finding(findings, ERRCODE_WRONG_OBJECT_TYPE, RelationGetRelid(rel), psprintf("\"%s\" is not a table", RelationGetRelationName(rel)),
						NULL, "Only ordinary and partitioned tables can be sharded.", NULL);
		return false;
	}
	if (form->relpersistence == RELPERSISTENCE_TEMP)
	{
		refuse_kind(findings, rel, ERRCODE_INVALID_TABLE_DEFINITION, "it is temporary", NULL, NULL);
		return false;
	}
	if (form->relpersistence != RELPERSISTENCE_PERMANENT)
		refuse_kind(findings, rel, ERRCODE_FEATURE_NOT_SUPPORTED, "it is unlogged, and its changes could not be followed in a move",
					"ALTER TABLE ... SET LOGGED.", psprintf("ALTER TABLE %s SET LOGGED", tessera_qualified_name(RelationGetRelid(rel))));
	if (form->relkind == RELKIND_RELATION && !form->relispartition)
		find_inheritance(rel, findings);
	if (form->relhasrules && rel->rd_rules != NULL)
		find_rules(rel, findings);
	return true;
}

void
tessera_check_table_kind(Relation rel)
{
	TesseraFindings findings = {0};
	ListCell   *cell;

	(void) find_kind(rel, &findings);
	foreach(cell, tessera_partitions(RelationGetRelid(rel), NoLock))
	{
		Relation	partition = table_open(lfirst_oid(cell), AccessShareLock);

		(void) find_kind(partition, &findings);
		table_close(partition, AccessShareLock);
	}
	tessera_findings_raise(&findings, NULL);
}


/* The key */

/* Attribute of a column that can be part of a key, or once a statement has been run; InvalidAttrNumber if it never can. */
static AttrNumber
key_column(Relation rel, const char *name, TesseraFindings *findings)
{
	Oid			relid = RelationGetRelid(rel);
	AttrNumber	attnum = get_attnum(relid, name);
	Form_pg_attribute att;

	if (attnum == InvalidAttrNumber || attnum < 0)
	{
		tessera_finding(findings, attnum < 0 ? ERRCODE_INVALID_TABLE_DEFINITION : ERRCODE_UNDEFINED_COLUMN, relid,
						attnum < 0 ? psprintf("system column \"%s\" cannot be part of a shard key", name) :
						psprintf("column \"%s\" of table \"%s\" does not exist", name, RelationGetRelationName(rel)), NULL, NULL, NULL);
		return InvalidAttrNumber;
	}
	att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	if (att->attgenerated != '\0')
	{
		tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, relid, psprintf("generated column \"%s\" cannot be part of a shard key", name),
						NULL, "Shard by the columns from which it is generated.", NULL);
		return InvalidAttrNumber;
	}
	if (!att->attnotnull)
	{
		const char *statement = psprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", tessera_qualified_name(relid), tessera_quote(name));

		tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, relid, psprintf("column \"%s\" of a shard key must be NOT NULL", name), NULL,
						psprintf("%s.", statement), statement);
	}
	return attnum;
}

typedef struct WantedKeySpace
{
	MemoryContext context;
	bool		hashed;
	int			ncolumns;
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	int32		typmods[TESSERA_MAX_KEY_COLUMNS];
	Oid			collations[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeySpace *result;
} WantedKeySpace;

static void
make_key_space(void *arg)
{
	WantedKeySpace *wanted = arg;

	wanted->result = tessera_keyspace_create(wanted->context, wanted->hashed, wanted->ncolumns, wanted->types, wanted->typmods, wanted->collations);
}

/* The key space, in a subtransaction: a type that cannot be a key is found deep inside. NULL: a finding was added. */
static TesseraKeySpace *
key_space(Relation rel, const TesseraShardKey *key, bool hashed, TesseraFindings *findings)
{
	WantedKeySpace wanted = {.context = CurrentMemoryContext, .hashed = hashed, .ncolumns = key->n};
	ErrorData  *error;

	for (int i = 0; i < key->n; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), key->attnums[i] - 1);

		wanted.types[i] = att->atttypid;
		wanted.typmods[i] = att->atttypmod;
		wanted.collations[i] = att->attcollation;
	}
	error = tessera_try(make_key_space, &wanted);
	if (error != NULL && ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
		ReThrowError(error);
	if (error != NULL)
		tessera_finding(findings, error->sqlerrcode, RelationGetRelid(rel), error->message, error->detail, error->hint, NULL);
	return wanted.result;
}

/* The key; NULL if the columns cannot be one as they are named, with a finding for each. */
static TesseraShardKey *
find_key(Relation rel, const char *text, bool hashed, TesseraFindings *findings)
{
	TesseraShardKey *key = palloc0(sizeof(TesseraShardKey));
	Oid			relid = RelationGetRelid(rel);
	bool		complete = true;
	List	   *names;
	ListCell   *cell;

	if (!SplitIdentifierString(pstrdup(text), ',', &names))
	{
		tessera_finding(findings, ERRCODE_INVALID_NAME, relid, psprintf("invalid shard key \"%s\"", text), NULL,
						"Name its columns, separated by commas.", NULL);
		return NULL;
	}
	if (names == NIL || list_length(names) > TESSERA_MAX_KEY_COLUMNS)
	{
		tessera_finding(findings, ERRCODE_INVALID_PARAMETER_VALUE, relid,
						psprintf("a shard key has 1 to %d columns, not %d", TESSERA_MAX_KEY_COLUMNS, list_length(names)), NULL, NULL, NULL);
		return NULL;
	}
	foreach(cell, names)
	{
		AttrNumber	attnum = key_column(rel, lfirst(cell), findings);

		complete &= attnum != InvalidAttrNumber;
		for (int i = 0; i < key->n && attnum != InvalidAttrNumber; i++)
			if (key->attnums[i] == attnum)
			{
				tessera_finding(findings, ERRCODE_DUPLICATE_COLUMN, relid,
								psprintf("column \"%s\" appears twice in the shard key", (char *) lfirst(cell)), NULL, NULL, NULL);
				return NULL;
			}
		key->names[key->n] = pstrdup(lfirst(cell));
		key->attnums[key->n++] = attnum;
	}
	if (!complete)
		return NULL;
	key->ks = key_space(rel, key, hashed, findings);
	return key->ks != NULL ? key : NULL;
}

TesseraShardKey *
tessera_parse_shard_key(Relation rel, const char *key, bool hashed)
{
	TesseraFindings findings = {0};
	TesseraShardKey *result = find_key(rel, key, hashed, &findings);

	tessera_findings_raise(&findings, NULL);
	return result;
}

static char *
key_columns(const TesseraShardKey *key)
{
	StringInfoData columns;

	initStringInfo(&columns);
	for (int i = 0; i < key->n; i++)
		appendStringInfo(&columns, "%s%s", i > 0 ? ", " : "", tessera_quote(key->names[i]));
	return columns.data;
}


/* Membership */

/* Is a sharded table sharded as is asked for, but in another group than the table of colocate_with? */
static bool
is_apart(const TesseraShardable *shardable, const TesseraTable *table)
{
	const TesseraTable *with = OidIsValid(shardable->with) ? tessera_routing_table(shardable->routing, shardable->with) : NULL;
	TesseraFindings scratch = {0};
	TesseraShardKey *key;

	if (with == NULL || with->group < 0 || with->group == table->group ||
		tessera_routing_group(shardable->routing, table->group)->hashed != shardable->hashed)
		return false;
	key = find_key(shardable->rel, shardable->key_text, shardable->hashed, &scratch);
	return key != NULL && key->n == table->nkeys && memcmp(key->attnums, table->keys, sizeof(AttrNumber) * key->n) == 0;
}

/* What is colocated with the table would have to leave the group with it. */
static void
find_company(const TesseraShardable *shardable, const TesseraTable *table, TesseraFindings *findings)
{
	const TesseraTable *tables = (const TesseraTable *) ((const char *) shardable->routing + shardable->routing->tables_offset);

	for (int i = 0; i < shardable->routing->ntables; i++)
		if (tables[i].group == table->group && tables[i].root != table->root)
			tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, table->relid,
							psprintf("table \"%s\" is colocated with another table", RelationGetRelationName(shardable->rel)),
							psprintf("Table \"%s\" is in its table group, and would stay there.",
									 get_rel_name(tables[i].relid) ? get_rel_name(tables[i].relid) : "?"),
							"Only a table that is alone in its table group can join another one.", NULL);
}

/* The table's entry in the routing table: a placed table, or one that is sharded apart. */
static const TesseraTable *
find_table(TesseraShardable *shardable, TesseraFindings *findings)
{
	Oid			relid = RelationGetRelid(shardable->rel);
	const char *name = RelationGetRelationName(shardable->rel);
	const TesseraTable *table = tessera_routing_table(shardable->routing, relid);

	if (table == NULL)
		tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, relid, psprintf("table \"%s\" is local to this node", name), NULL,
						"Only tables that belong to the cluster can be sharded: create it with tessera.replicate_ddl on.", NULL);
	else if (table->group >= 0 && is_apart(shardable, table))
	{
		shardable->apart = true;
		find_company(shardable, table, findings);
	}
	else if (table->group >= 0)
		tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, relid, psprintf("table \"%s\" is already sharded", name), NULL, NULL, NULL);
	else if (table->replicated)
		tessera_finding(findings, ERRCODE_FEATURE_NOT_SUPPORTED, relid, psprintf("table \"%s\" is replicated", name), NULL,
						"Make it a placed table first.", psprintf("SELECT tessera.unreplicate_table(%s)",
																  quote_literal_cstr(tessera_qualified_name(relid))));
	return table != NULL && (table->group < 0 || shardable->apart) ? table : NULL;
}

bool
tessera_key_columns_alike(const TesseraShardable *shardable, Oid with, const Oid *types, const int32 *typmods, const Oid *collations,
						  TesseraFindings *findings)
{
	Oid			relid = RelationGetRelid(shardable->rel);
	const TesseraKeySpace *ks = shardable->key->ks;
	bool		alike = true;

	for (int i = 0; i < ks->ncolumns; i++)
	{
		const char *column = shardable->key->names[i];
		StringInfoData statement;

		if (types[i] == ks->columns[i].type && collations[i] == ks->columns[i].collation)
			continue;
		initStringInfo(&statement);
		appendStringInfo(&statement, "ALTER TABLE %s ALTER COLUMN %s TYPE %s", tessera_qualified_name(relid), tessera_quote(column),
						 tessera_type_text(types[i], typmods[i], FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY));
		if (OidIsValid(collations[i]))
			appendStringInfo(&statement, " COLLATE %s", generate_collation_name(collations[i]));
		tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, relid,
						psprintf("column \"%s\" differs from the shard key of table \"%s\"", column, get_rel_name(with)),
						psprintf("Its type is %s, but the key has %s%s.", format_type_be(ks->columns[i].type), format_type_be(types[i]),
								 types[i] == ks->columns[i].type ? " with another collation" : ""), NULL, statement.data);
		alike = false;
	}
	return alike;
}

/* The group of colocate_with; it must be sharded alike: strategy, and types and collations of the key columns, in order. */
static const TesseraGroup *
find_group(const TesseraShardable *shardable, TesseraFindings *findings)
{
	Oid			relid = RelationGetRelid(shardable->rel);
	const TesseraTable *table = tessera_routing_table(shardable->routing, shardable->with);
	const char *with = get_rel_name(shardable->with) != NULL ? get_rel_name(shardable->with) : psprintf("%u", shardable->with);
	const TesseraKeySpace *ks = shardable->key->ks;
	const TesseraGroup *group;

	if (table == NULL || table->group < 0)
	{
		tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, shardable->with, psprintf("table \"%s\" is not sharded", with), NULL,
						"Shard it first, then colocate with it.", NULL);
		return NULL;
	}
	group = tessera_routing_group(shardable->routing, table->group);
	if (group->hashed != shardable->hashed)
	{
		tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, relid,
						psprintf("table \"%s\" is sharded by strategy '%s'", with, group->hashed ? "hash" : "range"), NULL,
						psprintf("Use strategy => '%s'.", group->hashed ? "hash" : "range"), NULL);
		return NULL;
	}
	if (group->ncolumns != ks->ncolumns)
	{
		tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, relid,
						psprintf("the shard key of table \"%s\" has %d columns, not %d", with, group->ncolumns, ks->ncolumns), NULL, NULL, NULL);
		return NULL;
	}
	return tessera_key_columns_alike(shardable, shardable->with, group->types, group->typmods, group->collations, findings) ? group : NULL;
}


/* Unique and exclusion constraints */

/* True if index column i compares key column k by equality. */
static bool
is_equality(Relation index, int i, const TesseraKeyColumn *column, const Oid *exclusion_operators)
{
	Oid			operator = exclusion_operators ? exclusion_operators[i] : lookup_type_cache(column->type, TYPECACHE_EQ_OPR)->eq_opr;

	return tessera_is_equality(operator, index->rd_indcollation[i], column->type, column->collation);
}

/* True if the key column is a plain column of the index, compared by equality. */
static bool
index_contains(Relation index, const TesseraShardKey *key, int k, const Oid *operators)
{
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		if (index->rd_index->indkey.values[i] == key->attnums[k] && is_equality(index, i, &key->ks->columns[k], operators))
			return true;
	return false;
}

/* Key columns that the index lacks, each followed by `suffix`; NULL: none. */
static char *
missing_columns(Relation index, const TesseraShardKey *key, const char *suffix)
{
	Oid		   *operators = NULL;
	Oid		   *procs;
	uint16	   *strategies;
	StringInfoData missing;

	if (index->rd_index->indisexclusion)
		RelationGetExclusionInfo(index, &operators, &procs, &strategies);
	initStringInfo(&missing);
	for (int k = 0; k < key->n; k++)
		if (!index_contains(index, key, k, operators))
			appendStringInfo(&missing, "%s%s, ", tessera_quote(key->names[k]), suffix);
	return missing.len > 0 ? missing.data : NULL;
}

static bool
is_key(const TesseraShardKey *key, AttrNumber attnum)
{
	for (int k = 0; k < key->n; k++)
		if (key->attnums[k] == attnum)
			return true;
	return false;
}

/* The constraint dropped and added again with the key in front of its columns. */
static char *
mended_constraint(Relation rel, Relation index, Oid constraint, const TesseraShardKey *key)
{
	Form_pg_index form = index->rd_index;
	const char *name = tessera_quote(get_constraint_name(constraint));
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfo(&sql, "ALTER TABLE %s DROP CONSTRAINT %s, ADD CONSTRAINT %s %s%s (%s", tessera_qualified_name(RelationGetRelid(rel)), name, name,
					 form->indisprimary ? "PRIMARY KEY" : "UNIQUE", form->indnullsnotdistinct ? " NULLS NOT DISTINCT" : "", key_columns(key));
	for (int i = 0; i < form->indnkeyatts; i++)
		if (!is_key(key, form->indkey.values[i]))
			appendStringInfo(&sql, ", %s", tessera_quote(get_attname(RelationGetRelid(rel), form->indkey.values[i], false)));
	appendStringInfoChar(&sql, ')');
	for (int i = form->indnkeyatts; i < form->indnatts; i++)
		appendStringInfo(&sql, "%s%s%s", i == form->indnkeyatts ? " INCLUDE (" : ", ",
						 tessera_quote(get_attname(RelationGetRelid(rel), form->indkey.values[i], false)), i + 1 == form->indnatts ? ")" : "");
	if (!form->indimmediate)
	{
		HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(constraint));

		appendStringInfoString(&sql, " DEFERRABLE");
		if (HeapTupleIsValid(tuple))
		{
			if (((Form_pg_constraint) GETSTRUCT(tuple))->condeferred)
				appendStringInfoString(&sql, " INITIALLY DEFERRED");
			ReleaseSysCache(tuple);
		}
	}
	if (form->indisreplident)
		appendStringInfo(&sql, ", REPLICA IDENTITY USING INDEX %s", name);
	return sql.data;
}

/* A definition's column list gets the missing columns in front; NULL if it is not as expected. */
static char *
with_columns(const char *definition, const char *start, const char *missing)
{
	if (strncmp(definition, start, strlen(start)) != 0)
		return NULL;
	return psprintf("%s%s%s", start, missing, definition + strlen(start));
}

static char *
mended_exclusion(Relation rel, Relation index, Oid constraint, const TesseraShardKey *key)
{
	const char *name = tessera_quote(get_constraint_name(constraint));
	const char *method = get_am_name(index->rd_rel->relam);
	const char *definition = TextDatumGetCString(DirectFunctionCall1(pg_get_constraintdef, ObjectIdGetDatum(constraint)));

	for (int k = 0; k < key->n; k++)
		if (!OidIsValid(GetDefaultOpClass(key->ks->columns[k].type, index->rd_rel->relam)))
			return NULL;
	definition = with_columns(definition, psprintf("EXCLUDE USING %s (", method), missing_columns(index, key, " WITH ="));
	if (definition == NULL)
		return NULL;
	return psprintf("ALTER TABLE %s DROP CONSTRAINT %s, ADD CONSTRAINT %s %s", tessera_qualified_name(RelationGetRelid(rel)), name, name, definition);
}

static char *
mended_index(Relation rel, Relation index, const TesseraShardKey *key)
{
	const char *name = tessera_quote(RelationGetRelationName(index));
	const char *schema = tessera_quote(get_namespace_name(RelationGetNamespace(index)));
	const char *definition = TextDatumGetCString(DirectFunctionCall1(pg_get_indexdef, ObjectIdGetDatum(RelationGetRelid(index))));
	const char *start = psprintf("CREATE UNIQUE INDEX %s ON %s USING %s (", name, tessera_qualified_name(RelationGetRelid(rel)),
								 get_am_name(index->rd_rel->relam));
	const char *missing = missing_columns(index, key, "");

	definition = with_columns(definition, start, missing);
	if (definition == NULL)
		return NULL;
	return psprintf("DROP INDEX %s.%s; %s", schema, name, definition);
}

/* Names of its key columns, expressions as such. In the current context. */
static char *
index_columns(Relation index)
{
	StringInfoData columns;

	initStringInfo(&columns);
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		appendStringInfo(&columns, "%s%s", i > 0 ? ", " : "",
						 TextDatumGetCString(DirectFunctionCall3(pg_get_indexdef_ext, ObjectIdGetDatum(RelationGetRelid(index)),
																  Int32GetDatum(i + 1), BoolGetDatum(false))));
	return columns.data;
}

/* *key_index: one of the mended ones will do as the key index. */
static void
find_unique(const TesseraShardable *shardable, TesseraFindings *findings, bool *key_index)
{
	Relation	rel = shardable->rel;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Oid			constraint = get_index_constraint(RelationGetRelid(index));
		bool		exclusion = index->rd_index->indisexclusion;
		const char *statement;

		/* that of a partition is like its parent's */
		if ((index->rd_index->indisunique || exclusion) && !index->rd_rel->relispartition && missing_columns(index, shardable->key, "") != NULL)
		{
			if (exclusion)
				statement = mended_exclusion(rel, index, constraint, shardable->key);
			else if (OidIsValid(constraint))
				statement = mended_constraint(rel, index, constraint, shardable->key);
			else
				statement = mended_index(rel, index, shardable->key);
			*key_index |= OidIsValid(constraint) && !exclusion;
			tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, RelationGetRelid(rel),
							OidIsValid(constraint) ? psprintf("constraint \"%s\" does not contain the shard key", get_constraint_name(constraint)) :
							psprintf("unique index \"%s\" does not contain the shard key", RelationGetRelationName(index)),
							"A shard cannot see whether a row of another shard violates it.",
							psprintf("Add the key columns to it%s, choose another shard key, or drop it.", exclusion ? " with the operator =" : ""),
							statement);
			if (statement != NULL && !exclusion)
				tessera_finding(findings, 0, RelationGetRelid(rel),
								psprintf("with the shard key in it, \"%s\" lets the same value of (%s) in once for each shard key",
										 RelationGetRelationName(index), index_columns(index)),
								"Where it must be unique in all of the table, keep the values in a table of their own that is sharded by them, or "
								"not sharded.", NULL, NULL);
		}
		index_close(index, AccessShareLock);
	}
}


/* Replica identity, key index */

static void
find_replica_identity(Relation rel, TesseraFindings *findings)
{
	char		identity = rel->rd_rel->relreplident;
	bool		primary;

	if (identity == REPLICA_IDENTITY_FULL || OidIsValid(RelationGetReplicaIndex(rel)))
		return;
	(void) RelationGetIndexList(rel);
	primary = OidIsValid(rel->rd_pkindex) && identity != REPLICA_IDENTITY_DEFAULT;
	tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, RelationGetRelid(rel),
					psprintf("table \"%s\" has no replica identity", RelationGetRelationName(rel)),
					"Updates and deletes could not be followed while its rows move.",
					identity == REPLICA_IDENTITY_NOTHING ? "ALTER TABLE ... REPLICA IDENTITY FULL, DEFAULT or USING INDEX." :
					"Add a primary key, or ALTER TABLE ... REPLICA IDENTITY FULL.",
					psprintf("ALTER TABLE %s REPLICA IDENTITY %s", tessera_qualified_name(RelationGetRelid(rel)), primary ? "DEFAULT" : "FULL"));
}

static void
find_key_index(TesseraShardable *shardable, TesseraFindings *findings, bool to_come)
{
	const char *name = tessera_qualified_name(RelationGetRelid(shardable->rel));
	const char *columns = key_columns(shardable->key);

	shardable->has_key_index = OidIsValid(tessera_key_index(shardable->rel, shardable->key->ks, shardable->key->attnums, NULL));
	if (shardable->has_key_index || shardable->create_index || to_come)
		return;
	tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, RelationGetRelid(shardable->rel),
					psprintf("table \"%s\" has no index that begins with its shard key", RelationGetRelationName(shardable->rel)),
					"Ranges of keys are scanned by a valid btree index without a predicate.",
					psprintf("Use create_index => true, or first CREATE INDEX ON %s (%s).", name, columns),
					psprintf("CREATE INDEX ON %s (%s)", name, columns));
}

/*
 * What a partition may have of its own. It has its parent's key by name, and an index that belongs to its parent's. Opened by the caller.
 */
static void
find_in_partition(const TesseraShardable *shardable, Relation rel, TesseraFindings *findings)
{
	TesseraShardable partition = {.rel = rel, .routing = shardable->routing, .group = shardable->group};
	bool		key_index = false;

	if (!find_kind(rel, findings))
		return;
	partition.key = find_key(rel, shardable->key_text, shardable->hashed, findings);
	if (partition.key != NULL)
	{
		tessera_find_foreign_keys(&partition, findings);
		find_unique(&partition, findings, &key_index);
	}
	find_replica_identity(rel, findings);
}

/* Only what is left of partitions that are dropped meanwhile is skipped: who is going to shard the table has it locked. */
static void
find_in_partitions(const TesseraShardable *shardable, TesseraFindings *findings)
{
	ListCell   *cell;

	foreach(cell, tessera_partitions(RelationGetRelid(shardable->rel), NoLock))
	{
		Relation	partition = try_relation_open(lfirst_oid(cell), AccessShareLock);

		if (partition == NULL)
			continue;
		find_in_partition(shardable, partition, findings);
		relation_close(partition, AccessShareLock);
	}
}

static void
find_all(TesseraShardable *shardable, TesseraFindings *findings)
{
	bool		key_index = false;

	if (find_partition(shardable->rel, findings) || !find_kind(shardable->rel, findings))
		return;
	shardable->table = find_table(shardable, findings);
	if (shardable->table == NULL)
		return;
	find_subscriptions(shardable->rel, shardable->subscribed, findings);
	shardable->key = find_key(shardable->rel, shardable->key_text, shardable->hashed, findings);
	if (shardable->key == NULL)
	{
		find_replica_identity(shardable->rel, findings);
		return;
	}
	if (OidIsValid(shardable->with))
		shardable->group = find_group(shardable, findings);
	tessera_find_foreign_keys(shardable, findings);
	find_unique(shardable, findings, &key_index);
	find_replica_identity(shardable->rel, findings);
	find_in_partitions(shardable, findings);
	find_key_index(shardable, findings, key_index);
}

void
tessera_shardable(TesseraShardable *shardable, TesseraFindings *findings)
{
	/* definitions and types in statements are qualified; an error ends the setting as well */
	int			level = tessera_fixed_settings_push(TESSERA_FIXED_NAMES | TESSERA_FIXED_QUOTES);

	find_all(shardable, findings);
	AtEOXact_GUC(true, level);
}

void
tessera_check_new_partition(Oid partition, const TesseraTable *root, const TesseraRouting *routing)
{
	TesseraShardKey key = {.n = root->nkeys};
	TesseraShardable shardable = {.routing = routing, .hashed = tessera_routing_group(routing, root->group)->hashed, .with = root->relid,
	.create_index = true};
	TesseraFindings findings = {0};

	for (int i = 0; i < root->nkeys; i++)
		key.names[i] = get_attname(root->relid, root->keys[i], false);
	shardable.key_text = key_columns(&key);
	shardable.subscribed = tessera_subscribed_anywhere(routing);
	shardable.rel = table_open(partition, AccessShareLock);
	tessera_shardable(&shardable, &findings);
	table_close(shardable.rel, AccessShareLock);
	tessera_findings_raise(&findings, NULL);
}
