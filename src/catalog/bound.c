/*
 * bound.c
 *	  tessera.bound: storage, text and binary form, order and hash. Values become bounds in bound_cast.c.
 *
 * A bound is stored as a varlena of its elements, one behind the other: a tag byte and, for a value, its text with the terminating nul. So it
 * needs no alignment within, and comparisons walk it without allocating.
 *
 * Text form:
 *	 one element		MINKEY, MAXKEY, 100, abc, "100", "MINKEY", "(x", ""
 *	 several			(1,abc), ("a b","say ""hi""","back\\slash",MAXKEY)
 * A single bare value is taken as it stands, with its spaces. Between parentheses, spaces around an element are skipped, double quotes may
 * enclose all or part of it, and a backslash takes the next character literally. The words MINKEY and MAXKEY are known in any case. Quoted
 * text is never a MINKEY, MAXKEY or number.
 *
 * Memory: everything is in the caller's context; comparisons free what they make, as index code must. No locks, no shared state.
 */
#include "postgres.h"

#include <ctype.h>

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "catalog/bound.h"
#include "common/version_compat.h"

#define TAG_MINKEY	'm'
#define TAG_MAXKEY	'M'
#define TAG_NUMBER	'n'
#define TAG_OTHER	'v'

/* What a number may have for the numeric type to take it. */
#define MAX_INTEGER_DIGITS	131072
#define MAX_FRACTION_DIGITS	16383

/* Texts of so many digits surely fit an int64. */
#define MAX_INT64_DIGITS	18

typedef struct BoundCursor
{
	const char *p;
	const char *end;
} BoundCursor;

PG_FUNCTION_INFO_V1(tessera_bound_in);
PG_FUNCTION_INFO_V1(tessera_bound_out);
PG_FUNCTION_INFO_V1(tessera_bound_recv);
PG_FUNCTION_INFO_V1(tessera_bound_send);
PG_FUNCTION_INFO_V1(tessera_bound_minkey);
PG_FUNCTION_INFO_V1(tessera_bound_maxkey);
PG_FUNCTION_INFO_V1(tessera_bound_lt);
PG_FUNCTION_INFO_V1(tessera_bound_le);
PG_FUNCTION_INFO_V1(tessera_bound_eq);
PG_FUNCTION_INFO_V1(tessera_bound_ne);
PG_FUNCTION_INFO_V1(tessera_bound_ge);
PG_FUNCTION_INFO_V1(tessera_bound_gt);
PG_FUNCTION_INFO_V1(tessera_bound_cmp);
PG_FUNCTION_INFO_V1(tessera_bound_hash);
PG_FUNCTION_INFO_V1(tessera_bound_hash_extended);


/* Walking a bound */

static BoundCursor
open_bound(const TesseraBound *bound)
{
	BoundCursor cursor;

	cursor.p = VARDATA(bound);
	cursor.end = (const char *) bound + VARSIZE(bound);
	return cursor;
}

/* The next element, its text pointing into the bound; behind the last one, MINKEY and false. */
static bool
next_element(BoundCursor *cursor, TesseraBoundElement *element)
{
	char		tag;

	element->kind = TESSERA_MINKEY;
	element->numeric = false;
	element->text = NULL;

	if (cursor->p >= cursor->end)
		return false;

	tag = *cursor->p++;
	switch (tag)
	{
		case TAG_MINKEY:
			break;
		case TAG_MAXKEY:
			element->kind = TESSERA_MAXKEY;
			break;
		case TAG_NUMBER:
		case TAG_OTHER:
			element->kind = TESSERA_VALUE;
			element->numeric = (tag == TAG_NUMBER);
			element->text = cursor->p;
			cursor->p += strlen(cursor->p) + 1;
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("invalid element tag %d in a tessera.bound", (int) tag)));
	}
	return true;
}


/* True if the text has the form in which the number types write their values. The numeric type accepts every such text. */
static bool
looks_like_number(const char *text)
{
	const char *p = text;
	size_t		digits;

	if (strcmp(p, "NaN") == 0 || strcmp(p, "Infinity") == 0 || strcmp(p, "-Infinity") == 0)
		return true;

	if (*p == '-')
		p++;
	digits = strspn(p, "0123456789");
	if (digits == 0 || digits > MAX_INTEGER_DIGITS)
		return false;
	p += digits;

	if (*p == '.')
	{
		digits = strspn(++p, "0123456789");
		if (digits == 0 || digits > MAX_FRACTION_DIGITS)
			return false;
		p += digits;
	}

	/* only floats have an exponent: few digits, and no more than three in the exponent */
	if (*p == 'e' && p - text < 64)
	{
		p++;
		if (*p == '-' || *p == '+')
			p++;
		digits = strspn(p, "0123456789");
		if (digits == 0 || digits > 3)
			return false;
		p += digits;
	}
	return *p == '\0';
}

static bool
is_keyword(const char *text, TesseraBoundKind *kind)
{
	if (pg_strcasecmp(text, "minkey") == 0)
		*kind = TESSERA_MINKEY;
	else if (pg_strcasecmp(text, "maxkey") == 0)
		*kind = TESSERA_MAXKEY;
	else
		return false;
	return true;
}

TesseraBound *
tessera_bound_make(int n, const TesseraBoundElement *elements)
{
	TesseraBound *bound;
	Size		size = VARHDRSZ;
	char	   *p;

	if (n < 1 || n > TESSERA_MAX_BOUND_ELEMENTS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a bound has 1 to %d elements, not %d", TESSERA_MAX_BOUND_ELEMENTS, n)));

	for (int i = 0; i < n; i++)
		size += 1 + (elements[i].kind == TESSERA_VALUE ? strlen(elements[i].text) + 1 : 0);

	bound = palloc(size);
	SET_VARSIZE(bound, size);
	p = VARDATA(bound);
	for (int i = 0; i < n; i++)
	{
		const TesseraBoundElement *element = &elements[i];

		if (element->kind == TESSERA_MINKEY)
			*p++ = TAG_MINKEY;
		else if (element->kind == TESSERA_MAXKEY)
			*p++ = TAG_MAXKEY;
		else
		{
			size_t		len = strlen(element->text) + 1;

			*p++ = (element->numeric && looks_like_number(element->text)) ? TAG_NUMBER : TAG_OTHER;
			memcpy(p, element->text, len);
			p += len;
		}
	}
	Assert(p == (char *) bound + size);
	return bound;
}

int
tessera_bound_elements(const TesseraBound *bound, TesseraBoundElement **elements)
{
	BoundCursor cursor = open_bound(bound);
	TesseraBoundElement element;
	int			n = 0;

	*elements = palloc(TESSERA_MAX_BOUND_ELEMENTS * sizeof(TesseraBoundElement));
	while (next_element(&cursor, &element))
	{
		if (element.text != NULL)
			element.text = pstrdup(element.text);
		(*elements)[n++] = element;
	}
	return n;
}


/* Order and hash */

/* Reads a plain integer that surely fits. */
static bool
small_integer(const char *text, int64 *result)
{
	const char *p = (*text == '-') ? text + 1 : text;
	int64		value = 0;
	int			digits = 0;

	for (; isdigit((unsigned char) *p); p++)
	{
		if (++digits > MAX_INT64_DIGITS)
			return false;
		value = value * 10 + (*p - '0');
	}
	if (digits == 0 || *p != '\0')
		return false;
	*result = (*text == '-') ? -value : value;
	return true;
}

static Datum
read_number(const char *text)
{
	return DirectFunctionCall3(numeric_in, CStringGetDatum(text), ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
}

static int
compare_numbers(const char *a, const char *b)
{
	int64		ia,
				ib;
	Datum		na,
				nb;
	int			result;

	if (small_integer(a, &ia) && small_integer(b, &ib))
		return (ia > ib) - (ia < ib);

	na = read_number(a);
	nb = read_number(b);
	result = DatumGetInt32(DirectFunctionCall2(numeric_cmp, na, nb));
	pfree(DatumGetPointer(na));
	pfree(DatumGetPointer(nb));
	return (result > 0) - (result < 0);
}

static int
compare_elements(const TesseraBoundElement *a, const TesseraBoundElement *b)
{
	int			result;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	if (a->kind != TESSERA_VALUE)
		return 0;
	if (a->numeric != b->numeric)
		return a->numeric ? -1 : 1;
	if (a->numeric)
		return compare_numbers(a->text, b->text);

	result = strcmp(a->text, b->text);
	return (result > 0) - (result < 0);
}

/* Order of bounds: MINKEY < numbers < other values < MAXKEY, element by element up to the first MINKEY or MAXKEY that both have; a shorter one is
 * filled with MINKEY. For display and uniqueness in the catalog; the order of keys is tessera_key_compare's alone. */
static int
compare_bounds(const TesseraBound *a, const TesseraBound *b)
{
	BoundCursor ca = open_bound(a);
	BoundCursor cb = open_bound(b);

	for (;;)
	{
		TesseraBoundElement ea,
					eb;
		bool		more;
		int			result;

		more = next_element(&ca, &ea);
		more |= next_element(&cb, &eb);
		if (!more)
			return 0;

		result = compare_elements(&ea, &eb);
		if (result != 0)
			return result;
		if (ea.kind != TESSERA_VALUE)
			return 0;
	}
}

/* Hash that is equal for bounds that compare equal: of the values before the first MINKEY, MAXKEY or end, and of whether MAXKEY is there. */
static uint64
hash_bound(const TesseraBound *bound, uint64 seed)
{
	BoundCursor cursor = open_bound(bound);
	TesseraBoundElement element;
	uint64		hash = seed;

	while (next_element(&cursor, &element) && element.kind == TESSERA_VALUE)
	{
		uint64		h;

		if (element.numeric)
		{
			Datum		number = read_number(element.text);

			h = DatumGetUInt64(DirectFunctionCall2(hash_numeric_extended, number, UInt64GetDatum(seed)));
			pfree(DatumGetPointer(number));
		}
		else
			h = DatumGetUInt64(hash_any_extended((const unsigned char *) element.text, strlen(element.text), seed));
		hash = hash_combine64(hash, h);
	}
	if (element.kind == TESSERA_MAXKEY)
		hash = hash_combine64(hash, 1);
	return hash;
}


/* Text form */

/* True if this text, written without quotes, is read as the same element again. */
static bool
needs_quotes(const TesseraBoundElement *element, bool compound)
{
	const char *text = element->text;
	TesseraBoundKind kind;

	if (element->numeric)
		return false;
	if (*text == '\0' || *text == '(' || *text == '"' || is_keyword(text, &kind) || looks_like_number(text))
		return true;
	if (!compound)
		return false;

	for (; *text != '\0'; text++)
	{
		if (strchr("\"\\(),", *text) != NULL || isspace((unsigned char) *text))
			return true;
	}
	return false;
}

static void
append_element(StringInfo buf, const TesseraBoundElement *element, bool compound)
{
	if (element->kind == TESSERA_MINKEY)
		appendStringInfoString(buf, "MINKEY");
	else if (element->kind == TESSERA_MAXKEY)
		appendStringInfoString(buf, "MAXKEY");
	else if (!needs_quotes(element, compound))
		appendStringInfoString(buf, element->text);
	else
	{
		appendStringInfoChar(buf, '"');
		for (const char *p = element->text; *p != '\0'; p++)
		{
			if (*p == '"' || *p == '\\')
				appendStringInfoChar(buf, *p);
			appendStringInfoChar(buf, *p);
		}
		appendStringInfoChar(buf, '"');
	}
}

char *
tessera_bound_to_cstring(const TesseraBound *bound)
{
	TesseraBoundElement *elements;
	int			n = tessera_bound_elements(bound, &elements);
	StringInfoData buf;

	initStringInfo(&buf);
	if (n == 1)
		append_element(&buf, &elements[0], false);
	else
	{
		for (int i = 0; i < n; i++)
		{
			appendStringInfoChar(&buf, i == 0 ? '(' : ',');
			append_element(&buf, &elements[i], true);
		}
		appendStringInfoChar(&buf, ')');
	}
	return buf.data;
}

static void
malformed(const char *literal, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
			 errmsg("malformed bound literal: \"%s\"", literal),
			 errdetail("%s", detail)));
}

/* Reads from behind an opening double quote to behind the closing one. */
static const char *
read_quoted(const char *literal, const char *p, StringInfo text)
{
	for (;; p++)
	{
		if (*p == '"' && p[1] != '"')
			return p + 1;
		if (*p == '"' || *p == '\\')
			p++;
		if (*p == '\0')
			malformed(literal, "A double quote is not closed.");
		appendStringInfoChar(text, *p);
	}
}

/* The element for a text; quoted text is always a value. */
static TesseraBoundElement
make_element(char *text, bool quoted)
{
	TesseraBoundElement element = {TESSERA_VALUE, false, NULL};

	if (!quoted && is_keyword(text, &element.kind))
		return element;
	element.numeric = !quoted && looks_like_number(text);
	element.text = text;
	return element;
}

/* Reads one element of a compound, up to its comma or closing parenthesis. */
static const char *
read_compound_element(const char *literal, const char *p, TesseraBoundElement *element)
{
	StringInfoData text;
	int			len = 0;		/* without trailing spaces */
	bool		quoted = false;

	initStringInfo(&text);
	while (isspace((unsigned char) *p))
		p++;
	while (*p != ',' && *p != ')')
	{
		if (*p == '\0')
			malformed(literal, "The closing parenthesis is missing.");
		if (*p == '(')
			malformed(literal, "A parenthesis within an element must be quoted.");

		if (*p == '"')
		{
			p = read_quoted(literal, p + 1, &text);
			quoted = true;
			len = text.len;
			continue;
		}
		if (*p == '\\')
		{
			if (*++p == '\0')
				malformed(literal, "Nothing follows the backslash.");
			quoted = true;
			appendStringInfoChar(&text, *p++);
			len = text.len;
			continue;
		}
		appendStringInfoChar(&text, *p);
		if (!isspace((unsigned char) *p++))
			len = text.len;
	}

	text.data[len] = '\0';
	if (len == 0 && !quoted)
		malformed(literal, "An element is missing; the empty string is written as \"\".");
	*element = make_element(text.data, quoted);
	return p;
}

/* Reads a literal that begins with a parenthesis; returns the number of elements. */
static int
read_compound(const char *literal, TesseraBoundElement *elements)
{
	const char *p = literal;
	int			n = 0;

	do
	{
		if (n == TESSERA_MAX_BOUND_ELEMENTS)
			malformed(literal, "It has too many elements.");
		p = read_compound_element(literal, p + 1, &elements[n++]);
	} while (*p == ',');

	for (p++; *p != '\0'; p++)
	{
		if (!isspace((unsigned char) *p))
			malformed(literal, "Something follows the closing parenthesis.");
	}
	return n;
}

Datum
tessera_bound_in(PG_FUNCTION_ARGS)
{
	char	   *literal = PG_GETARG_CSTRING(0);
	TesseraBoundElement elements[TESSERA_MAX_BOUND_ELEMENTS];
	int			n = 1;

	if (literal[0] == '(')
		n = read_compound(literal, elements);
	else if (literal[0] == '"')
	{
		StringInfoData text;

		initStringInfo(&text);
		if (*read_quoted(literal, literal + 1, &text) != '\0')
			malformed(literal, "Something follows the closing double quote.");
		elements[0] = make_element(text.data, true);
	}
	else
		elements[0] = make_element(literal, false);

	PG_RETURN_POINTER(tessera_bound_make(n, elements));
}

Datum
tessera_bound_out(PG_FUNCTION_ARGS)
{
	PG_RETURN_CSTRING(tessera_bound_to_cstring(PG_GETARG_TESSERA_BOUND_P(0)));
}


/* Binary form: the number of elements as a byte; for each its tag as a byte and, for values, a counted text. */

Datum
tessera_bound_recv(PG_FUNCTION_ARGS)
{
	StringInfo	buf = (StringInfo) PG_GETARG_POINTER(0);
	TesseraBoundElement elements[TESSERA_MAX_BOUND_ELEMENTS];
	int			n = pq_getmsgbyte(buf);

	if (n < 1 || n > TESSERA_MAX_BOUND_ELEMENTS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("invalid number of elements in external tessera.bound value")));

	for (int i = 0; i < n; i++)
	{
		int			tag = pq_getmsgbyte(buf);
		TesseraBoundElement *element = &elements[i];

		memset(element, 0, sizeof(*element));
		if (tag == TAG_MINKEY)
			element->kind = TESSERA_MINKEY;
		else if (tag == TAG_MAXKEY)
			element->kind = TESSERA_MAXKEY;
		else if (tag == TAG_NUMBER || tag == TAG_OTHER)
		{
			int			len = pq_getmsgint(buf, 4);
			int			ignored;

			if (len < 0 || len > buf->len - buf->cursor)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
						 errmsg("invalid text length in external tessera.bound value")));
			element->kind = TESSERA_VALUE;
			element->numeric = (tag == TAG_NUMBER);
			element->text = pq_getmsgtext(buf, len, &ignored);
		}
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
					 errmsg("invalid element tag in external tessera.bound value")));
	}
	PG_RETURN_POINTER(tessera_bound_make(n, elements));
}

Datum
tessera_bound_send(PG_FUNCTION_ARGS)
{
	TesseraBound *bound = PG_GETARG_TESSERA_BOUND_P(0);
	TesseraBoundElement *elements;
	int			n = tessera_bound_elements(bound, &elements);
	StringInfoData buf;

	pq_begintypsend(&buf);
	pq_sendbyte(&buf, n);
	for (int i = 0; i < n; i++)
	{
		if (elements[i].kind == TESSERA_MINKEY)
			pq_sendbyte(&buf, TAG_MINKEY);
		else if (elements[i].kind == TESSERA_MAXKEY)
			pq_sendbyte(&buf, TAG_MAXKEY);
		else
		{
			pq_sendbyte(&buf, elements[i].numeric ? TAG_NUMBER : TAG_OTHER);
			tessera_send_counted_text(&buf, elements[i].text);
		}
	}
	PG_RETURN_BYTEA_P(pq_endtypsend(&buf));
}


/* The two ends of every key space */

Datum
tessera_bound_minkey(PG_FUNCTION_ARGS)
{
	TesseraBoundElement element = {TESSERA_MINKEY, false, NULL};

	PG_RETURN_POINTER(tessera_bound_make(1, &element));
}

Datum
tessera_bound_maxkey(PG_FUNCTION_ARGS)
{
	TesseraBoundElement element = {TESSERA_MAXKEY, false, NULL};

	PG_RETURN_POINTER(tessera_bound_make(1, &element));
}


/* Operators and support functions of the operator classes */

static int
compare_arguments(FunctionCallInfo fcinfo)
{
	TesseraBound *a = PG_GETARG_TESSERA_BOUND_P(0);
	TesseraBound *b = PG_GETARG_TESSERA_BOUND_P(1);
	int			result = compare_bounds(a, b);

	PG_FREE_IF_COPY(a, 0);
	PG_FREE_IF_COPY(b, 1);
	return result;
}

Datum
tessera_bound_lt(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare_arguments(fcinfo) < 0);
}

Datum
tessera_bound_le(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare_arguments(fcinfo) <= 0);
}

Datum
tessera_bound_eq(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare_arguments(fcinfo) == 0);
}

Datum
tessera_bound_ne(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare_arguments(fcinfo) != 0);
}

Datum
tessera_bound_ge(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare_arguments(fcinfo) >= 0);
}

Datum
tessera_bound_gt(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(compare_arguments(fcinfo) > 0);
}

Datum
tessera_bound_cmp(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(compare_arguments(fcinfo));
}

/* The low half of the extended hash with seed 0, as hash operator classes must have it. */
Datum
tessera_bound_hash(PG_FUNCTION_ARGS)
{
	TesseraBound *bound = PG_GETARG_TESSERA_BOUND_P(0);
	uint64		hash = hash_bound(bound, 0);

	PG_FREE_IF_COPY(bound, 0);
	PG_RETURN_UINT32((uint32) hash);
}

Datum
tessera_bound_hash_extended(PG_FUNCTION_ARGS)
{
	TesseraBound *bound = PG_GETARG_TESSERA_BOUND_P(0);
	uint64		hash = hash_bound(bound, PG_GETARG_INT64(1));

	PG_FREE_IF_COPY(bound, 0);
	PG_RETURN_UINT64(hash);
}
