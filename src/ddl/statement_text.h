/*
 * statement_text.h
 *	  The text by which other nodes run a statement that has run here.
 */
#ifndef TESSERA_STATEMENT_TEXT_H
#define TESSERA_STATEMENT_TEXT_H

#include "ddl/ddl.h"

/* Its own text; CREATE and ALTER EXTENSION with the version that is installed here now. Palloc'd. */
extern char *tessera_statement_text(TesseraUtility *utility);

#endif							/* TESSERA_STATEMENT_TEXT_H */
