/*
 * foreign_keys.c
 *	  Foreign keys of a table that is to be sharded: which ones leave its group, and how they look with the shard key in them. See shardable.h.
 *
 * A foreign key between two tables of one group, paired on their shard keys, is checked by each shard alone. Any other must go before the table is
 * sharded, and can come back when the other table is sharded alike. Reads system catalogs only; an index leads to the foreign keys of the referencing
 * side.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_constraint.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "admin/shardable.h"
#include "common/text.h"

/* One foreign key, seen from the table that is to be sharded. */
typedef struct ForeignKey
{
	Form_pg_constraint form;
	bool		referencing;	/* the table is the referencing side */
	Oid			own;
	Oid			other;
	int			n;
	const int16 *own_columns;
	const int16 *other_columns;
	int			nset;			/* ON DELETE SET NULL (columns) */
	const int16 *set;
} ForeignKey;


static int
column_array(HeapTuple tuple, Relation constraints, AttrNumber attribute, const int16 **columns)
{
	bool		isnull;
	Datum		datum = heap_getattr(tuple, attribute, RelationGetDescr(constraints), &isnull);
	ArrayType  *array;

	*columns = NULL;
	if (isnull)
		return 0;
	array = DatumGetArrayTypeP(datum);
	*columns = (int16 *) ARR_DATA_PTR(array);
	return ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
}

static void
read_foreign_key(HeapTuple tuple, Relation constraints, bool referencing, ForeignKey *fk)
{
	fk->form = (Form_pg_constraint) GETSTRUCT(tuple);
	fk->referencing = referencing;
	fk->own = referencing ? fk->form->conrelid : fk->form->confrelid;
	fk->other = referencing ? fk->form->confrelid : fk->form->conrelid;
	fk->n = column_array(tuple, constraints, referencing ? Anum_pg_constraint_conkey : Anum_pg_constraint_confkey, &fk->own_columns);
	if (column_array(tuple, constraints, referencing ? Anum_pg_constraint_confkey : Anum_pg_constraint_conkey, &fk->other_columns) != fk->n)
		fk->n = 0;
	fk->nset = column_array(tuple, constraints, Anum_pg_constraint_confdelsetcols, &fk->set);
}

/* The column of the other side that is paired with one of the table's; InvalidAttrNumber: none. */
static AttrNumber
paired_with(const ForeignKey *fk, AttrNumber own)
{
	for (int i = 0; i < fk->n; i++)
		if (fk->own_columns[i] == own)
			return fk->other_columns[i];
	return InvalidAttrNumber;
}

/* True if it pairs each key column of one side with the key column of the same position of the other. */
static bool
joins_on_key(const ForeignKey *fk, const AttrNumber *keys, const AttrNumber *other_keys, int nkeys)
{
	for (int k = 0; k < nkeys; k++)
	{
		bool		found = false;

		for (int i = 0; i < fk->n && !found; i++)
			found = fk->own_columns[i] == keys[k] && fk->other_columns[i] == other_keys[k];
		if (!found)
			return false;
	}
	return true;
}

static bool
stays_in_group(const TesseraShardable *shardable, const ForeignKey *fk)
{
	const TesseraShardKey *key = shardable->key;
	const TesseraTable *table;

	if (fk->other == fk->own)
		return joins_on_key(fk, key->attnums, key->attnums, key->n);
	table = tessera_routing_table(shardable->routing, fk->other);
	if (table != NULL && table->replicated)
		return fk->referencing;
	table = shardable->group != NULL ? table : NULL;
	return table != NULL && table->group == shardable->group->index && joins_on_key(fk, key->attnums, table->keys, key->n);
}

/* The key that the other side is to get; NULL: not known. */
static const TesseraIntendedKey *
intended_key(const TesseraShardable *shardable, Oid other)
{
	ListCell   *cell;

	foreach(cell, shardable->intended)
	{
		const TesseraIntendedKey *intended = lfirst(cell);

		if (intended->relid == other && intended->n == shardable->key->n)
			return intended;
	}
	return NULL;
}

/*
 * Key columns of the other side, by position: those of its group, or that it is to get, or those that are paired with ours, or those of the same
 * names. false: there is none for one.
 */
static bool
other_keys(const TesseraShardable *shardable, const ForeignKey *fk, AttrNumber *keys)
{
	const TesseraTable *table = tessera_routing_table(shardable->routing, fk->other);
	const TesseraIntendedKey *intended = intended_key(shardable, fk->other);

	for (int k = 0; k < shardable->key->n; k++)
	{
		if (fk->other == fk->own)
			keys[k] = shardable->key->attnums[k];
		else if (table != NULL && table->group >= 0 && table->nkeys == shardable->key->n)
			keys[k] = table->keys[k];
		else if (intended != NULL)
			keys[k] = intended->attnums[k];
		else
			keys[k] = paired_with(fk, shardable->key->attnums[k]);
		if (keys[k] == InvalidAttrNumber)
			keys[k] = get_attnum(fk->other, shardable->key->names[k]);
		if (keys[k] <= 0)
			return false;
	}
	return true;
}

static void
add_column(StringInfo list, Oid relid, AttrNumber column)
{
	appendStringInfo(list, "%s%s", list->len > 0 ? ", " : "", tessera_quote(get_attname(relid, column, false)));
}

static bool
is_one_of(AttrNumber column, const AttrNumber *columns, int n)
{
	for (int i = 0; i < n; i++)
		if (columns[i] == column)
			return true;
	return false;
}

static const char *
action_text(char action)
{
	switch (action)
	{
		case FKCONSTR_ACTION_RESTRICT:
			return "RESTRICT";
		case FKCONSTR_ACTION_CASCADE:
			return "CASCADE";
		case FKCONSTR_ACTION_SETNULL:
			return "SET NULL";
		case FKCONSTR_ACTION_SETDEFAULT:
			return "SET DEFAULT";
		default:
			return NULL;
	}
}

/* Actions and the rest. ON DELETE SET NULL must leave the shard key alone: it names the columns that it had. */
static void
add_options(StringInfo sql, const ForeignKey *fk, const AttrNumber *referencing_keys, int nkeys)
{
	Form_pg_constraint form = fk->form;
	const int16 *referencing = fk->referencing ? fk->own_columns : fk->other_columns;
	StringInfoData columns;

	initStringInfo(&columns);
	if (form->confmatchtype == FKCONSTR_MATCH_FULL)
		appendStringInfoString(sql, " MATCH FULL");
	if (action_text(form->confupdtype) != NULL)
		appendStringInfo(sql, " ON UPDATE %s", action_text(form->confupdtype));
	if (action_text(form->confdeltype) != NULL)
		appendStringInfo(sql, " ON DELETE %s", action_text(form->confdeltype));
	if (form->confdeltype == FKCONSTR_ACTION_SETNULL || form->confdeltype == FKCONSTR_ACTION_SETDEFAULT)
	{
		for (int i = 0; i < (fk->nset > 0 ? fk->nset : fk->n); i++)
		{
			AttrNumber	column = fk->nset > 0 ? fk->set[i] : referencing[i];

			if (!is_one_of(column, referencing_keys, nkeys))
				add_column(&columns, form->conrelid, column);
		}
		if (columns.len > 0)
			appendStringInfo(sql, " (%s)", columns.data);
	}
	if (form->condeferrable)
		appendStringInfo(sql, " DEFERRABLE%s", form->condeferred ? " INITIALLY DEFERRED" : "");
	if (!form->convalidated)
		appendStringInfoString(sql, " NOT VALID");
}

/* True if one of the pairs to be added names a column that is paired with another one already. */
static bool
pairs_differently(const TesseraShardable *shardable, const ForeignKey *fk, const AttrNumber *others)
{
	for (int k = 0; k < shardable->key->n; k++)
		for (int i = 0; i < fk->n; i++)
			if ((fk->own_columns[i] == shardable->key->attnums[k]) != (fk->other_columns[i] == others[k]))
				return true;
	return false;
}

/* The foreign key with the shard keys of both sides in it; NULL if the other side has no column for it, or it joins rows of different keys. */
static char *
composite(const TesseraShardable *shardable, const ForeignKey *fk)
{
	const AttrNumber *own = shardable->key->attnums;
	int			nkeys = shardable->key->n;
	AttrNumber	others[TESSERA_MAX_KEY_COLUMNS];
	StringInfoData sql,
				own_list,
				other_list;

	if (!other_keys(shardable, fk, others) || pairs_differently(shardable, fk, others))
		return NULL;
	initStringInfo(&sql);
	initStringInfo(&own_list);
	initStringInfo(&other_list);
	for (int k = 0; k < nkeys; k++)
		if (paired_with(fk, own[k]) != others[k])
		{
			add_column(&own_list, fk->own, own[k]);
			add_column(&other_list, fk->other, others[k]);
		}
	for (int i = 0; i < fk->n; i++)
	{
		add_column(&own_list, fk->own, fk->own_columns[i]);
		add_column(&other_list, fk->other, fk->other_columns[i]);
	}
	appendStringInfo(&sql, "ALTER TABLE %s ADD CONSTRAINT %s FOREIGN KEY (%s) REFERENCES %s (%s)", tessera_qualified_name(fk->form->conrelid),
					 tessera_quote(NameStr(fk->form->conname)), fk->referencing ? own_list.data : other_list.data,
					 tessera_qualified_name(fk->form->confrelid), fk->referencing ? other_list.data : own_list.data);
	add_options(&sql, fk, fk->referencing ? own : others, nkeys);
	return sql.data;
}

static void
find_foreign_key(const TesseraShardable *shardable, const ForeignKey *fk, TesseraFindings *findings)
{
	AttrNumber	others[TESSERA_MAX_KEY_COLUMNS];
	TesseraFinding *finding;
	const char *again;
	const char *detail = "A shard can check a foreign key only if it joins tables of one group on their shard keys.";

	/* that of a partition goes with its parent's */
	if (OidIsValid(fk->form->conparentid) || list_member_oid(findings->foreign_keys, fk->form->oid) || stays_in_group(shardable, fk))
		return;
	again = composite(shardable, fk);
	if (again != NULL && fk->other == fk->own)
		detail = psprintf("%s With the shard key in it: %s", detail, again);
	else if (again != NULL)
		detail = psprintf("%s When both tables are sharded alike: %s", detail, again);
	else if (other_keys(shardable, fk, others))
		detail = psprintf("%s It joins rows of different keys: as it is, it cannot be kept.", detail);
	else
		detail = psprintf("%s It can be added again when table \"%s\" has the columns of the shard key and is sharded by them.", detail,
						  get_rel_name(fk->other));
	findings->foreign_keys = lappend_oid(findings->foreign_keys, fk->form->oid);
	finding = tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, fk->form->conrelid,
							psprintf("foreign key \"%s\" between \"%s\" and \"%s\" would leave the table group", NameStr(fk->form->conname),
									 get_rel_name(fk->form->conrelid), get_rel_name(fk->form->confrelid)), detail,
							"Drop the constraint, shard both tables alike (colocate_with), and add it again with the key columns in it.",
							psprintf("ALTER TABLE %s DROP CONSTRAINT %s", tessera_qualified_name(fk->form->conrelid),
									 tessera_quote(NameStr(fk->form->conname))));
	finding->restore = again;
	finding->referenced = fk->form->confrelid;
	finding->constraint = pstrdup(NameStr(fk->form->conname));
}

/* Calls for each foreign key in which the table is on one side; stops when `visit` returns true. */
static void
scan_foreign_keys(Oid relid, bool referencing, bool (*visit) (const ForeignKey *fk, void *context), void *context)
{
	Relation	constraints = table_open(ConstraintRelationId, AccessShareLock);
	ScanKeyData condition;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		done = false;

	ScanKeyInit(&condition, referencing ? Anum_pg_constraint_conrelid : Anum_pg_constraint_confrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(constraints, referencing ? ConstraintRelidTypidNameIndexId : InvalidOid, referencing, NULL, 1, &condition);
	while (!done && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		ForeignKey	fk;

		if (((Form_pg_constraint) GETSTRUCT(tuple))->contype != CONSTRAINT_FOREIGN)
			continue;
		read_foreign_key(tuple, constraints, referencing, &fk);
		done = visit(&fk, context);
	}
	systable_endscan(scan);
	table_close(constraints, AccessShareLock);
}

typedef struct Finder
{
	const TesseraShardable *shardable;
	TesseraFindings *findings;
} Finder;

static bool
visit_finder(const ForeignKey *fk, void *context)
{
	Finder	   *finder = context;

	find_foreign_key(finder->shardable, fk, finder->findings);
	return false;
}

void
tessera_find_foreign_keys(const TesseraShardable *shardable, TesseraFindings *findings)
{
	Finder		finder = {shardable, findings};

	scan_foreign_keys(RelationGetRelid(shardable->rel), true, visit_finder, &finder);
	scan_foreign_keys(RelationGetRelid(shardable->rel), false, visit_finder, &finder);
}

typedef struct OtherKey
{
	const TesseraShardable *shardable;
	Oid			other;
	bool		found;
	AttrNumber	keys[TESSERA_MAX_KEY_COLUMNS];
} OtherKey;

static bool
visit_other(const ForeignKey *fk, void *context)
{
	OtherKey   *search = context;

	if (fk->other != search->other)
		return false;
	for (int k = 0; k < search->shardable->key->n; k++)
	{
		search->keys[k] = paired_with(fk, search->shardable->key->attnums[k]);
		if (search->keys[k] == InvalidAttrNumber)
			return false;
	}
	return search->found = true;
}

char *
tessera_foreign_key_of_other(const TesseraShardable *shardable, Oid other)
{
	OtherKey	search = {.shardable = shardable, .other = other};
	StringInfoData columns;

	scan_foreign_keys(RelationGetRelid(shardable->rel), true, visit_other, &search);
	if (!search.found)
		scan_foreign_keys(RelationGetRelid(shardable->rel), false, visit_other, &search);
	initStringInfo(&columns);
	for (int k = 0; k < shardable->key->n; k++)
	{
		if (!search.found)
			search.keys[k] = get_attnum(other, shardable->key->names[k]);
		if (search.keys[k] <= 0)
			return NULL;
		add_column(&columns, other, search.keys[k]);
	}
	return columns.data;
}
