/*
 * shardable.c
 *	  Checks whether a table can be sharded by a key (DESIGN sections 4, 9; C4). See shardable.h.
 *
 * A constraint that one shard checks alone holds for the cluster only if all rows it compares lie on one shard: so it must contain the key, compared by
 * equality. The same schema is on every node, so the checks are made on the node that was asked. The caller holds a lock that keeps DDL off the table.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"
#include "utils/varlena.h"

#include "admin/shardable.h"


/* The table itself */

static void
refuse_kind(Relation rel, int sqlstate, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("table \"%s\" cannot be sharded: %s", RelationGetRelationName(rel), what),
			 hint != NULL ? errhint("%s", hint) : 0));
}

static bool
is_subscription_target(Oid relid)
{
	CatCList   *list = SearchSysCacheList1(SUBSCRIPTIONRELMAP, ObjectIdGetDatum(relid));
	bool		found = list->n_members > 0;

	ReleaseSysCacheList(list);
	return found;
}

void
tessera_check_table_kind(Relation rel)
{
	Form_pg_class form = rel->rd_rel;

	if (form->relkind == RELKIND_PARTITIONED_TABLE || form->relispartition)
		refuse_kind(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "partitioned tables are not supported yet", NULL);
	if (form->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table", RelationGetRelationName(rel)),
				 errhint("Only ordinary tables can be sharded.")));
	if (form->relpersistence == RELPERSISTENCE_TEMP)
		refuse_kind(rel, ERRCODE_INVALID_TABLE_DEFINITION, "it is temporary", NULL);
	if (form->relpersistence != RELPERSISTENCE_PERMANENT)
		refuse_kind(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "it is unlogged, and its changes could not be followed in a move",
					"ALTER TABLE ... SET LOGGED.");
	if (has_superclass(RelationGetRelid(rel)) || find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL)
		refuse_kind(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "table inheritance is not supported", "ALTER TABLE ... NO INHERIT.");
	if (form->relhasrules && rel->rd_rules != NULL)
		refuse_kind(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "it has rules", "Drop them, or use triggers.");
	if (is_subscription_target(RelationGetRelid(rel)))
		refuse_kind(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "a subscription writes into it",
					"Take it out of the publication, or drop the subscription.");
}


/* The key */

/* Attribute of a column that can be part of a key. */
static AttrNumber
key_column(Relation rel, const char *name)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), name);
	Form_pg_attribute att;

	if (attnum == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of table \"%s\" does not exist", name, RelationGetRelationName(rel))));
	if (attnum < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("system column \"%s\" cannot be part of a shard key", name)));
	att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	if (att->attgenerated != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("generated column \"%s\" cannot be part of a shard key", name),
				 errhint("Shard by the columns from which it is generated.")));
	if (!att->attnotnull)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("column \"%s\" of a shard key must be NOT NULL", name),
				 errhint("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL.",
						 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel)),
						 quote_identifier(name))));
	return attnum;
}

TesseraShardKey *
tessera_parse_shard_key(Relation rel, const char *key, bool hashed)
{
	TesseraShardKey *result = palloc0(sizeof(TesseraShardKey));
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	int32		typmods[TESSERA_MAX_KEY_COLUMNS];
	Oid			collations[TESSERA_MAX_KEY_COLUMNS];
	List	   *names;
	ListCell   *lc;

	if (!SplitIdentifierString(pstrdup(key), ',', &names))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("invalid shard key \"%s\"", key),
				 errhint("Name its columns, separated by commas.")));
	if (names == NIL || list_length(names) > TESSERA_MAX_KEY_COLUMNS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a shard key has 1 to %d columns, not %d", TESSERA_MAX_KEY_COLUMNS, list_length(names))));

	foreach(lc, names)
	{
		int			i = result->n;

		result->names[i] = pstrdup(lfirst(lc));
		result->attnums[i] = key_column(rel, result->names[i]);
		for (int j = 0; j < i; j++)
			if (result->attnums[j] == result->attnums[i])
				ereport(ERROR,
						(errcode(ERRCODE_DUPLICATE_COLUMN),
						 errmsg("column \"%s\" appears twice in the shard key", result->names[i])));
		types[i] = TupleDescAttr(RelationGetDescr(rel), result->attnums[i] - 1)->atttypid;
		typmods[i] = TupleDescAttr(RelationGetDescr(rel), result->attnums[i] - 1)->atttypmod;
		collations[i] = TupleDescAttr(RelationGetDescr(rel), result->attnums[i] - 1)->attcollation;
		result->n++;
	}
	result->ks = tessera_keyspace_create(CurrentMemoryContext, hashed, result->n, types, typmods, collations);
	return result;
}


/* Unique and exclusion constraints */

/* Does index column i compare key column k by equality? */
static bool
is_equality(Relation index, int i, const TesseraKeyColumn *column, const Oid *exclusion_operators)
{
	TypeCacheEntry *type;

	if (OidIsValid(index->rd_indcollation[i]) && !get_collation_isdeterministic(index->rd_indcollation[i]))
		return false;
	if (exclusion_operators == NULL)
		return true;
	type = lookup_type_cache(column->type, TYPECACHE_EQ_OPR);
	if (exclusion_operators[i] == type->eq_opr)
		return true;
	return OidIsValid(column->btree_opfamily) &&
		get_op_opfamily_strategy(exclusion_operators[i], column->btree_opfamily) == BTEqualStrategyNumber;
}

/* Is every key column a plain column of the index, compared by equality? */
static bool
index_contains_key(Relation index, const TesseraShardKey *key)
{
	Oid		   *operators = NULL;
	Oid		   *procs;
	uint16	   *strategies;

	if (index->rd_index->indisexclusion)
		RelationGetExclusionInfo(index, &operators, &procs, &strategies);
	for (int k = 0; k < key->n; k++)
	{
		bool		found = false;

		for (int i = 0; i < index->rd_index->indnkeyatts && !found; i++)
			found = index->rd_index->indkey.values[i] == key->attnums[k] && is_equality(index, i, &key->ks->columns[k], operators);
		if (!found)
			return false;
	}
	return true;
}

static void
check_unique(Relation rel, const TesseraShardKey *key)
{
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Oid			constraint = get_index_constraint(RelationGetRelid(index));

		if ((index->rd_index->indisunique || index->rd_index->indisexclusion) && !index_contains_key(index, key))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
					 OidIsValid(constraint) ?
					 errmsg("constraint \"%s\" does not contain the shard key", get_constraint_name(constraint)) :
					 errmsg("unique index \"%s\" does not contain the shard key", RelationGetRelationName(index)),
					 errdetail("A shard cannot see whether a row of another shard violates it."),
					 errhint("Add the key columns to it%s, choose another shard key, or drop it.",
							 index->rd_index->indisexclusion ? " with the operator =" : "")));
		index_close(index, AccessShareLock);
	}
}


/* Foreign keys */

static int
column_array(HeapTuple tuple, Relation constraints, AttrNumber attribute, int16 **columns)
{
	bool		isnull;
	Datum		datum = heap_getattr(tuple, attribute, RelationGetDescr(constraints), &isnull);
	ArrayType  *array;

	if (isnull)
		return 0;
	array = DatumGetArrayTypeP(datum);
	*columns = (int16 *) ARR_DATA_PTR(array);
	return ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
}

/* Does the foreign key pair each key column of one side with the key column of the same position of the other? */
static bool
joins_on_key(HeapTuple tuple, Relation constraints, const AttrNumber *keys, const AttrNumber *other_keys, int nkeys, bool referencing)
{
	int16	   *columns,
			   *others;
	int			n = column_array(tuple, constraints, referencing ? Anum_pg_constraint_conkey : Anum_pg_constraint_confkey, &columns);

	if (column_array(tuple, constraints, referencing ? Anum_pg_constraint_confkey : Anum_pg_constraint_conkey, &others) != n)
		return false;
	for (int k = 0; k < nkeys; k++)
	{
		bool		found = false;

		for (int i = 0; i < n && !found; i++)
			found = columns[i] == keys[k] && others[i] == other_keys[k];
		if (!found)
			return false;
	}
	return true;
}

static void
check_foreign_key(Relation rel, Relation constraints, HeapTuple tuple, const TesseraShardKey *key, const TesseraRouting *routing,
				  const TesseraGroup *group, bool referencing)
{
	Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(tuple);
	Oid			other = referencing ? form->confrelid : form->conrelid;
	const TesseraTable *table;

	if (other == RelationGetRelid(rel))
	{
		if (joins_on_key(tuple, constraints, key->attnums, key->attnums, key->n, referencing))
			return;
	}
	else if (group != NULL && (table = tessera_routing_table(routing, other)) != NULL && table->group == group->index &&
			 joins_on_key(tuple, constraints, key->attnums, table->keys, key->n, referencing))
		return;

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
			 errmsg("foreign key \"%s\" between \"%s\" and \"%s\" would leave the table group", NameStr(form->conname),
					get_rel_name(form->conrelid), get_rel_name(form->confrelid)),
			 errdetail("A shard can check a foreign key only if it joins tables of one group on their shard keys."),
			 errhint("Drop the constraint, shard both tables alike (colocate_with), and add it again with the key columns in it.")));
}

/* Foreign keys in which the table is on one side; an index leads to those of conrelid only. */
static void
check_foreign_keys(Relation rel, const TesseraShardKey *key, const TesseraRouting *routing, const TesseraGroup *group, bool referencing)
{
	Relation	constraints = table_open(ConstraintRelationId, AccessShareLock);
	ScanKeyData condition;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&condition, referencing ? Anum_pg_constraint_conrelid : Anum_pg_constraint_confrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(rel)));
	scan = systable_beginscan(constraints, referencing ? ConstraintRelidTypidNameIndexId : InvalidOid, referencing, NULL, 1, &condition);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (((Form_pg_constraint) GETSTRUCT(tuple))->contype == CONSTRAINT_FOREIGN)
			check_foreign_key(rel, constraints, tuple, key, routing, group, referencing);
	systable_endscan(scan);
	table_close(constraints, AccessShareLock);
}


/* Replica identity */

static void
check_replica_identity(Relation rel)
{
	char		identity = rel->rd_rel->relreplident;

	if (identity == REPLICA_IDENTITY_FULL || OidIsValid(RelationGetReplicaIndex(rel)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
			 errmsg("table \"%s\" has no replica identity", RelationGetRelationName(rel)),
			 errdetail("Updates and deletes could not be followed while its rows move."),
			 errhint("%s", identity == REPLICA_IDENTITY_NOTHING ? "ALTER TABLE ... REPLICA IDENTITY FULL, DEFAULT or USING INDEX." :
					 "Add a primary key, or ALTER TABLE ... REPLICA IDENTITY FULL.")));
}

void
tessera_check_table_constraints(Relation rel, const TesseraShardKey *key, const TesseraRouting *routing, const TesseraGroup *group)
{
	check_unique(rel, key);
	check_foreign_keys(rel, key, routing, group, true);
	check_foreign_keys(rel, key, routing, group, false);
	check_replica_identity(rel);
}
