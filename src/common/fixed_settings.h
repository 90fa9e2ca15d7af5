/*
 * fixed_settings.h
 *	  Settings that the text of values depends on, and what they are while nodes write and read such text for each other.
 */
#ifndef TESSERA_FIXED_SETTINGS_H
#define TESSERA_FIXED_SETTINGS_H

#include "postgres.h"

/* Groups of settings. Which of them the text of a type depends on: tessera_text_settings in rows/exact_text.h. */
typedef enum TesseraFixedSettings
{
	TESSERA_FIXED_STYLES = 1,	/* of dates, intervals, floats and bytea: any of them can be read, but not all of them say everything */
	TESSERA_FIXED_READING = 2,	/* what is taken for NULL, and for an XML document */
	TESSERA_FIXED_NAMES = 4,	/* which names of objects need their schema */
	TESSERA_FIXED_MONEY = 8,
	TESSERA_FIXED_BYTES = 16,	/* the same bytes for the same value; not needed to read it */
	TESSERA_FIXED_QUOTES = 32,	/* the same bytes for the same name */
	TESSERA_FIXED_ALL = 63
} TesseraFixedSettings;

/* True if these groups' settings are what they are to be. Cheap: where they are, nothing has to be pushed. */
extern bool tessera_settings_are_fixed(int groups);

/*
 * Sets them, until the nest level that is returned ends by AtEOXact_GUC; an error ends it with the transaction or subtransaction. Needs a
 * transaction.
 */
extern int	tessera_fixed_settings_push(int groups);

/* All of them, for the rest of this process. Outside a transaction. */
extern void tessera_fixed_settings_keep(void);

#endif							/* TESSERA_FIXED_SETTINGS_H */
