/*
 * fixed_settings.c
 *	  Settings that the text of values depends on; see fixed_settings.h. The one list of them and of their values.
 *
 * Nothing is kept but what the server keeps for a nest level of settings.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/bytea.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/xml.h"

#include "common/fixed_settings.h"

typedef struct FixedSetting
{
	const char *name;
	const char *value;
	int			group;
} FixedSetting;

static const FixedSetting fixed_settings[] = {
	{"client_encoding", "UTF8", TESSERA_FIXED_BYTES},
	{"search_path", "pg_catalog, pg_temp", TESSERA_FIXED_NAMES},
	{"DateStyle", "ISO, MDY", TESSERA_FIXED_STYLES},
	{"IntervalStyle", "postgres", TESSERA_FIXED_STYLES},
	{"TimeZone", "UTC", TESSERA_FIXED_BYTES},
	{"extra_float_digits", "3", TESSERA_FIXED_STYLES},
	{"bytea_output", "hex", TESSERA_FIXED_STYLES},
	{"array_nulls", "on", TESSERA_FIXED_READING},
	{"xmloption", "content", TESSERA_FIXED_READING},
	{"lc_monetary", "C", TESSERA_FIXED_MONEY},
	{"quote_all_identifiers", "off", TESSERA_FIXED_QUOTES},
};

static bool
is_fixed(const FixedSetting *setting)
{
	const char *value = GetConfigOption(setting->name, false, false);

	return value != NULL && strcmp(value, setting->value) == 0;
}

bool
tessera_settings_are_fixed(int groups)
{
	/* by their variables: this is asked for each value; what says the same in another way will do */
	if ((groups & TESSERA_FIXED_STYLES) &&
		(DateStyle != USE_ISO_DATES || IntervalStyle != INTSTYLE_POSTGRES || extra_float_digits <= 0 || bytea_output != BYTEA_OUTPUT_HEX))
		return false;
	if ((groups & TESSERA_FIXED_READING) && (!Array_nulls || xmloption != XMLOPTION_CONTENT))
		return false;
	if ((groups & TESSERA_FIXED_QUOTES) && quote_all_identifiers)
		return false;
	groups &= ~(TESSERA_FIXED_STYLES | TESSERA_FIXED_READING | TESSERA_FIXED_QUOTES);
	for (int i = 0; groups != 0 && i < lengthof(fixed_settings); i++)
		if ((fixed_settings[i].group & groups) && !is_fixed(&fixed_settings[i]))
			return false;
	return true;
}

int
tessera_fixed_settings_push(int groups)
{
	int			nest = NewGUCNestLevel();

	for (int i = 0; i < lengthof(fixed_settings); i++)
	{
		if ((fixed_settings[i].group & groups) && !is_fixed(&fixed_settings[i]))
			(void) set_config_option(fixed_settings[i].name, fixed_settings[i].value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	}
	return nest;
}

void
tessera_fixed_settings_keep(void)
{
	for (int i = 0; i < lengthof(fixed_settings); i++)
	{
		if (!is_fixed(&fixed_settings[i]))
			SetConfigOption(fixed_settings[i].name, fixed_settings[i].value, PGC_SUSET, PGC_S_SESSION);
	}
}
