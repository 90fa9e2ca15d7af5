/*
 * statistics_json.c
 *	  pg_statistic rows as JSON and back; see statistics_json.h.
 *
 * The rows are read by a scan and not through the syscache: the worker that looks at all tables would keep all of them in memory. Values are printed
 * by the types' own output functions, with intervals as ISO 8601, floats exact and dates as ISO, which nodes of any version and settings can read.
 * No function of a user is called: types are built in, and enums are looked up by label.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/indexing.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_statistic.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "common/fixed_settings.h"
#include "statistics/statistics_json.h"

/*
 * Bytes of a table's JSON. A user may have 10000 values of a kilobyte kept for each column, which no jsonb holds. What does not fit is left out, and
 * the planner guesses.
 */
#define MOST_BYTES (4 * 1024 * 1024)

/* True if values of the type (no domain) can travel to another node as text. */
static bool
type_travels(Oid type)
{
	Oid			element;

	if (get_typtype(type) == TYPTYPE_ENUM)
		return true;
	if (type >= FirstGenbkiObjectId || type == CASHOID)
		return false;
	switch (type)
	{
		case REGCLASSOID:
		case REGCOLLATIONOID:
		case REGCONFIGOID:
		case REGDICTIONARYOID:
		case REGNAMESPACEOID:
		case REGOPERATOROID:
		case REGOPEROID:
		case REGPROCEDUREOID:
		case REGPROCOID:
		case REGROLEOID:
		case REGTYPEOID:
		case ACLITEMOID:
			return false;
		default:
			break;
	}
	element = get_element_type(type);
	if (OidIsValid(element))
		return type_travels(getBaseType(element));
	switch (get_typtype(type))
	{
		case TYPTYPE_BASE:
		case TYPTYPE_RANGE:
		case TYPTYPE_MULTIRANGE:
			return true;
		default:
			return false;
	}
}

static SysScanDesc
scan_statistics(Relation statistics, Oid relid)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_pg_statistic_starelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	return systable_beginscan(statistics, StatisticRelidAttnumInhIndexId, true, NULL, 1, &key);
}

uint64
tessera_statistics_hash(Relation rel)
{
	Relation	statistics = table_open(StatisticRelationId, AccessShareLock);
	SysScanDesc scan = scan_statistics(statistics, RelationGetRelid(rel));
	uint64		hash = 0;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TransactionId xid = HeapTupleHeaderGetRawXmin(tuple->t_data);
		AttrNumber	attnum = ((Form_pg_statistic) GETSTRUCT(tuple))->staattnum;

		hash += hash_bytes_extended((const unsigned char *) &xid, sizeof(xid), attnum);
		if (attnum > 0 && attnum <= RelationGetNumberOfAttributes(rel))
		{
			const char *name = NameStr(TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attname);

			hash += hash_bytes_extended((const unsigned char *) name, strlen(name), attnum);
		}
	}
	systable_endscan(scan);
	table_close(statistics, AccessShareLock);
	return hash;
}


/* Writing */

static void
append_string(StringInfo out, const char *name, const char *value)
{
	appendStringInfo(out, ",\"%s\":", name);
	escape_json(out, value);
}

static void
append_numbers(StringInfo out, ArrayType *array)
{
	int			n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	const float4 *numbers = (const float4 *) ARR_DATA_PTR(array);

	appendStringInfoString(out, ",\"numbers\":[");
	for (int i = 0; i < n; i++)
		appendStringInfo(out, "%s%.9g", i ? "," : "", isfinite(numbers[i]) ? numbers[i] : 0.0);
	appendStringInfoChar(out, ']');
}

static void
append_values(StringInfo out, ArrayType *array)
{
	Oid			type = getBaseType(ARR_ELEMTYPE(array));
	int16		length;
	bool		by_value;
	char		align;
	Datum	   *values;
	int			n;
	FmgrInfo	output;
	Oid			function;
	bool		is_varlena;

	get_typlenbyvalalign(ARR_ELEMTYPE(array), &length, &by_value, &align);
	deconstruct_array(array, ARR_ELEMTYPE(array), length, by_value, align, &values, NULL, &n);
	getTypeOutputInfo(type, &function, &is_varlena);
	fmgr_info(function, &output);
	append_string(out, "type", format_type_be_qualified(type));
	appendStringInfoString(out, ",\"values\":[");
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			appendStringInfoChar(out, ',');
		escape_json(out, OutputFunctionCall(&output, values[i]));
	}
	appendStringInfoChar(out, ']');
}

/* How a slot's collation is named on the way; NULL: it cannot be. */
static const char *
collation_name(Oid collation, Form_pg_attribute att)
{
	if (!OidIsValid(collation))
		return "none";
	if (collation == att->attcollation)
		return "column";
	if (collation == DEFAULT_COLLATION_OID)
		return "default";
	return NULL;
}

/* One slot, if it can travel. first: none of the column's is there yet. */
static bool
append_slot(StringInfo out, HeapTuple tuple, Form_pg_attribute att, TupleDesc desc, int slot, bool first)
{
	Form_pg_statistic form = (Form_pg_statistic) GETSTRUCT(tuple);
	int			kind = (&form->stakind1)[slot];
	Oid			op = (&form->staop1)[slot];
	const char *collation = collation_name((&form->stacoll1)[slot], att);
	Datum		numbers,
				values;
	bool		no_numbers,
				no_values;
	ArrayType  *array = NULL;

	if (kind == 0 || kind > STATISTIC_KIND_BOUNDS_HISTOGRAM || collation == NULL || op >= FirstGenbkiObjectId)
		return false;
	numbers = heap_getattr(tuple, Anum_pg_statistic_stanumbers1 + slot, desc, &no_numbers);
	values = heap_getattr(tuple, Anum_pg_statistic_stavalues1 + slot, desc, &no_values);
	if (!no_values)
	{
		array = DatumGetArrayTypeP(values);
		if (!type_travels(getBaseType(ARR_ELEMTYPE(array))))
			return false;
	}
	appendStringInfo(out, "%s{\"kind\":%d", first ? "" : ",", kind);
	append_string(out, "collation", collation);
	if (OidIsValid(op))
		append_string(out, "operator", format_operator_qualified(op));
	if (!no_numbers)
		append_numbers(out, DatumGetArrayTypeP(numbers));
	if (array)
		append_values(out, array);
	appendStringInfoChar(out, '}');
	return true;
}

static void
append_column(StringInfo out, HeapTuple tuple, Form_pg_attribute att, TupleDesc desc)
{
	Form_pg_statistic form = (Form_pg_statistic) GETSTRUCT(tuple);
	bool		first = true;

	appendStringInfo(out, "%s{\"inherit\":%s,\"null\":%.9g,\"width\":%d,\"distinct\":%.9g", out->len > 1 ? "," : "",
					 form->stainherit ? "true" : "false", form->stanullfrac, form->stawidth, form->stadistinct);
	append_string(out, "name", NameStr(att->attname));
	append_string(out, "of", format_type_be_qualified(getBaseType(att->atttypid)));
	appendStringInfoString(out, ",\"slots\":[");
	for (int slot = 0; slot < STATISTIC_NUM_SLOTS; slot++)
	{
		int			before = out->len;

		if (!append_slot(out, tuple, att, desc, slot, first))
			continue;
		if (out->len <= MOST_BYTES)
			first = false;
		else
		{
			out->len = before;
			out->data[before] = '\0';
		}
	}
	appendStringInfoString(out, "]}");
}

char *
tessera_statistics_to_json(Relation rel)
{
	Relation	statistics = table_open(StatisticRelationId, AccessShareLock);
	SysScanDesc scan = scan_statistics(statistics, RelationGetRelid(rel));
	int			level = NewGUCNestLevel();
	StringInfoData out;
	HeapTuple	tuple;

	(void) set_config_option("datestyle", "ISO", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("intervalstyle", "iso_8601", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("extra_float_digits", "1", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("quote_all_identifiers", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	initStringInfo(&out);
	appendStringInfoChar(&out, '[');
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		AttrNumber	attnum = ((Form_pg_statistic) GETSTRUCT(tuple))->staattnum;
		Form_pg_attribute att;

		if (attnum <= 0 || attnum > RelationGetNumberOfAttributes(rel))
			continue;
		att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
		if (!att->attisdropped)
			append_column(&out, tuple, att, RelationGetDescr(statistics));
	}
	appendStringInfoChar(&out, ']');
	AtEOXact_GUC(true, level);
	systable_endscan(scan);
	table_close(statistics, AccessShareLock);
	return out.data;
}


/* Reading */

static JsonbValue *
field(JsonbContainer *object, const char *name, enum jbvType type)
{
	JsonbValue *value = getKeyJsonValueFromContainer(object, name, strlen(name), NULL);

	return value != NULL && value->type == type ? value : NULL;
}

static char *
text_field(JsonbContainer *object, const char *name)
{
	JsonbValue *value = field(object, name, jbvString);

	return value ? pnstrdup(value->val.string.val, value->val.string.len) : NULL;
}

static double
number_of(JsonbValue *value)
{
	return value != NULL && value->type == jbvNumeric ? DatumGetFloat8(DirectFunctionCall1(numeric_float8, NumericGetDatum(value->val.numeric))) : 0;
}

static JsonbContainer *
array_field(JsonbContainer *object, const char *name)
{
	JsonbValue *value = field(object, name, jbvBinary);

	return value != NULL && JsonContainerIsArray(value->val.binary.data) ? value->val.binary.data : NULL;
}

static void
read_numbers(JsonbContainer *array, TesseraStatisticsSlot *slot)
{
	int			n = array ? JsonContainerSize(array) : 0;

	slot->numbers = palloc(sizeof(float4) * Max(n, 1));
	slot->nnumbers = n;
	for (int i = 0; i < n; i++)
		slot->numbers[i] = (float4) number_of(getIthJsonbValueFromContainer(array, i));
}

/* A value of an enum by its label; false: there is none of this label (any more). */
static bool
enum_value(Oid type, const char *label, Datum *value)
{
	HeapTuple	tuple;

	if (strlen(label) >= NAMEDATALEN)
		return false;
	tuple = SearchSysCache2(ENUMTYPOIDNAME, ObjectIdGetDatum(type), CStringGetDatum(label));
	if (!HeapTupleIsValid(tuple))
		return false;
	*value = ObjectIdGetDatum(((Form_pg_enum) GETSTRUCT(tuple))->oid);
	ReleaseSysCache(tuple);
	return true;
}

/* The values of a slot; false: it cannot be used without one of them. */
static bool
read_values(JsonbContainer *array, Oid type, TesseraStatisticsSlot *slot)
{
	int			n = JsonContainerSize(array);
	bool		is_enum = get_typtype(type) == TYPTYPE_ENUM;
	FmgrInfo	input;
	Oid			function,
				ioparam;

	getTypeInputInfo(type, &function, &ioparam);
	fmgr_info(function, &input);
	slot->type = type;
	slot->values = palloc(sizeof(Datum) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		JsonbValue *value = getIthJsonbValueFromContainer(array, i);
		char	   *text;

		if (value == NULL || value->type != jbvString)
			return false;
		text = pnstrdup(value->val.string.val, value->val.string.len);
		if (!is_enum)
			slot->values[i] = InputFunctionCall(&input, text, ioparam, -1);
		else if (!enum_value(type, text, &slot->values[i]))
			return false;
	}
	slot->nvalues = n;
	return true;
}

/* The type of a slot's values, by name; InvalidOid if it is none that may travel here. candidates: the column's own, that of its parts, lengths. */
static Oid
type_of_values(const char *name, Oid column)
{
	Oid			candidates[3] = {column, InvalidOid, FLOAT8OID};

	candidates[1] = getBaseType(column);
	if (OidIsValid(get_element_type(candidates[1])))
		candidates[1] = getBaseType(get_element_type(candidates[1]));
	else if (candidates[1] == TSVECTOROID)
		candidates[1] = TEXTOID;
	else if (get_typtype(candidates[1]) == TYPTYPE_MULTIRANGE)
		candidates[1] = get_multirange_range(candidates[1]);
	candidates[0] = getBaseType(column);
	for (int i = 0; i < lengthof(candidates); i++)
		if (strcmp(format_type_be_qualified(candidates[i]), name) == 0 && type_travels(candidates[i]))
			return candidates[i];
	return InvalidOid;
}

static bool
read_slot(JsonbContainer *object, Form_pg_attribute att, TesseraStatisticsSlot *slot)
{
	char	   *collation = text_field(object, "collation");
	char	   *operator = text_field(object, "operator");
	char	   *type = text_field(object, "type");
	JsonbContainer *values = array_field(object, "values");

	memset(slot, 0, sizeof(*slot));
	slot->kind = (int) number_of(field(object, "kind", jbvNumeric));
	if (slot->kind < STATISTIC_KIND_MCV || slot->kind > STATISTIC_KIND_BOUNDS_HISTOGRAM || collation == NULL)
		return false;
	slot->collation = strcmp(collation, "column") == 0 ? att->attcollation : strcmp(collation, "default") == 0 ? DEFAULT_COLLATION_OID : InvalidOid;
	if (operator != NULL)
	{
		slot->op = DatumGetObjectId(DirectFunctionCall1(to_regoperator, CStringGetTextDatum(operator)));
		if (!OidIsValid(slot->op))
			return false;
	}
	read_numbers(array_field(object, "numbers"), slot);
	if (values != NULL)
	{
		Oid			oid = type ? type_of_values(type, att->atttypid) : InvalidOid;

		return OidIsValid(oid) && read_values(values, oid, slot);
	}
	return type == NULL;
}

static bool
read_column(Relation rel, JsonbContainer *object, TesseraColumnStatistics *column)
{
	char	   *name = text_field(object, "name");
	char	   *type = text_field(object, "of");
	JsonbValue *inherit = field(object, "inherit", jbvBool);
	JsonbContainer *slots = array_field(object, "slots");
	Form_pg_attribute att;

	memset(column, 0, sizeof(*column));
	column->attnum = name ? get_attnum(RelationGetRelid(rel), name) : InvalidAttrNumber;
	if (column->attnum <= 0 || column->attnum > RelationGetNumberOfAttributes(rel) || type == NULL || inherit == NULL)
		return false;
	att = TupleDescAttr(RelationGetDescr(rel), column->attnum - 1);
	if (strcmp(type, format_type_be_qualified(getBaseType(att->atttypid))) != 0)
		return false;
	column->inherit = inherit->val.boolean;
	column->nullfrac = (float4) number_of(field(object, "null", jbvNumeric));
	column->width = (int32) number_of(field(object, "width", jbvNumeric));
	column->distinct = (float4) number_of(field(object, "distinct", jbvNumeric));
	for (int i = 0; slots != NULL && i < JsonContainerSize(slots) && column->nslots < STATISTIC_NUM_SLOTS; i++)
	{
		JsonbValue *slot = getIthJsonbValueFromContainer(slots, i);

		if (slot->type == jbvBinary && read_slot(slot->val.binary.data, att, &column->slots[column->nslots]))
			column->nslots++;
	}
	return true;
}

TesseraColumnStatistics *
tessera_statistics_from_json(Relation rel, Jsonb *json, int *n)
{
	JsonbContainer *root = &json->root;
	int			size = JsonContainerIsArray(root) ? JsonContainerSize(root) : 0;
	TesseraColumnStatistics *columns = palloc(sizeof(TesseraColumnStatistics) * Max(size, 1));
	int			level = tessera_fixed_settings_push(TESSERA_FIXED_READING | TESSERA_FIXED_QUOTES);

	*n = 0;
	for (int i = 0; i < size; i++)
	{
		JsonbValue *value = getIthJsonbValueFromContainer(root, i);

		if (value->type == jbvBinary && JsonContainerIsObject(value->val.binary.data) && read_column(rel, value->val.binary.data, &columns[*n]))
			(*n)++;
	}
	AtEOXact_GUC(true, level);
	return columns;
}
