/*
 * utility.c
 *	  A utility statement on its way through the ProcessUtility hook; see utility.h.
 */
#include "postgres.h"

#include "parser/scansup.h"

#include "common/utility.h"

char *
tessera_utility_text(TesseraUtility *utility)
{
	const char *start = utility->text;
	int			length = utility->statement->stmt_len;

	if (utility->statement->stmt_location > 0)
		start += utility->statement->stmt_location;
	if (length <= 0)
		length = strlen(start);
	while (length > 0 && scanner_isspace(*start))
		start++, length--;
	while (length > 0 && (scanner_isspace(start[length - 1]) || start[length - 1] == ';'))
		length--;
	return pnstrdup(start, length);
}
