/*
 * exact_text.c
 *	  Text of values that depends on no setting; see exact_text.h.
 *
 * tessera_internal.exact_text stands around output columns in the statements that routers send (planner/exact_columns.c). It calls the type's output
 * function where the server would have called it a moment later, as the same user.
 *
 * Memory: what is looked up for a call's type lives as long as its FmgrInfo.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "catalog/portable_types.h"
#include "common/fixed_settings.h"
#include "common/wire.h"
#include "rows/exact_text.h"

PG_FUNCTION_INFO_V1(tessera_internal_exact_text);

struct TesseraExactText
{
	bool		is_text;		/* in memory: nothing is called */
	FmgrInfo	output;
	int			settings;
};

bool
tessera_binary_is_exact(Oid type)
{
	return type != XMLOID && tessera_type_goes_binary(type);
}

/* True if the output function may go by how values are to be shown. A user's, which is not known, may. */
static bool
has_styles(Oid type)
{
	Oid			function;
	bool		varlena;

	getTypeOutputInfo(type, &function, &varlena);
	switch (function)
	{
		case F_BOOLOUT:
		case F_BPCHAROUT:
		case F_ENUM_OUT:
		case F_INT2OUT:
		case F_INT4OUT:
		case F_INT8OUT:
		case F_NAMEOUT:
		case F_NUMERIC_OUT:
		case F_TEXTOUT:
		case F_UUID_OUT:
		case F_VARCHAROUT:
			return false;
		case F_ARRAY_OUT:		/* these have what their parts have */
		case F_RANGE_OUT:
		case F_MULTIRANGE_OUT:
		case F_RECORD_OUT:
			return false;
		default:
			return !tessera_type_names_object(type);
	}
}

static bool
is_money(Oid type)
{
	return type == CASHOID;
}

int
tessera_text_settings(Oid type)
{
	int			settings = 0;

	if (tessera_type_is_made_of(type, has_styles))
		settings |= TESSERA_FIXED_STYLES;
	if (tessera_type_is_made_of(type, tessera_type_names_object))
		settings |= TESSERA_FIXED_NAMES;
	if (tessera_type_is_made_of(type, is_money))
		settings |= TESSERA_FIXED_MONEY;
	return settings;
}

/* The output function; but those that name functions and operators leave their arguments out, and so cannot say which of several is meant. */
static Oid
exact_output(Oid type)
{
	Oid			function;
	bool		varlena;

	switch (getBaseType(type))
	{
		case REGPROCOID:
			return F_REGPROCEDUREOUT;
		case REGOPEROID:
			return F_REGOPERATOROUT;
		default:
			getTypeOutputInfo(type, &function, &varlena);
			return function;
	}
}

TesseraExactText *
tessera_exact_text_of(Oid type, MemoryContext context)
{
	TesseraExactText *exact = MemoryContextAlloc(context, sizeof(TesseraExactText));

	exact->is_text = getBaseType(type) == XMLOID;
	fmgr_info_cxt(exact_output(type), &exact->output, context);
	exact->settings = tessera_text_settings(type);
	return exact;
}

char *
tessera_exact_text(TesseraExactText *exact, Datum value)
{
	if (exact->is_text)
		return TextDatumGetCString(value);
	return tessera_wire_fixed_output(&exact->output, value, exact->settings);
}

Datum
tessera_internal_exact_text(PG_FUNCTION_ARGS)
{
	TesseraExactText *exact = fcinfo->flinfo->fn_extra;

	if (exact == NULL)
	{
		Oid			type = get_fn_expr_argtype(fcinfo->flinfo, 0);

		if (!OidIsValid(type))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not determine the type of a value")));
		fcinfo->flinfo->fn_extra = exact = tessera_exact_text_of(type, fcinfo->flinfo->fn_mcxt);
	}
	if (exact->is_text)
		PG_RETURN_DATUM(PG_GETARG_DATUM(0));
	PG_RETURN_TEXT_P(cstring_to_text(tessera_exact_text(exact, PG_GETARG_DATUM(0))));
}
