/*
 * settings_mirror.c
 *	  Finds the settings to mirror by walking the server's own table of settings; see settings_mirror.h.
 *
 * No hook sees every way a setting can change (SET LOCAL, a function's SET clause, set_config, rollback), so the table itself is read each time. Records of
 * the server's own settings never move, so which of them are denied or always mirrored is looked up once by name, then by address.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"

#include "transaction/settings_mirror.h"

/* About this connection, this transaction or this server; never mirrored, as is nearly everything of tessera's own. */
static const char *const denied_names[] = {
	"application_name", "client_connection_check_interval", "client_encoding", "default_transaction_deferrable", "default_transaction_isolation",
	"default_transaction_read_only", "idle_in_transaction_session_timeout", "idle_session_timeout", "is_superuser", "local_preload_libraries",
	"post_auth_delay", "role", "seed", "session_authorization", "session_preload_libraries", "statement_timeout", "tcp_keepalives_count",
	"tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_user_timeout", "temp_tablespaces", "default_tablespace", "transaction_deferrable", "transaction_isolation",
	"transaction_read_only", "jit_provider", "dynamic_library_path", "log_min_messages", "log_min_error_statement", "log_statement",
	"log_duration", "log_min_duration_statement", "output_plugin_libraries",
};

/* They change what a value or a name means, so the other server's own default must not count. */
static const char *const always_names[] = {
	"search_path", "DateStyle", "IntervalStyle", "TimeZone", "timezone_abbreviations", "extra_float_digits", "bytea_output", "array_nulls",
	"standard_conforming_strings", "backslash_quote", "escape_string_warning", "quote_all_identifiers", "transform_null_equals", "xmlbinary",
	"xmloption", "default_text_search_config", "row_security", "check_function_bodies",
};

typedef struct Verdict
{
	struct config_generic *setting;
	bool		denied;			/* else always mirrored */
} Verdict;

#define VERDICTS 256			/* power of two, well above the number of names */

static Verdict verdicts[VERDICTS];
static bool verdicts_made = false;

static inline Verdict *
find_verdict(const struct config_generic *setting)
{
	uint32		i = murmurhash32((uint32) ((uintptr_t) setting >> 4)) & (VERDICTS - 1);

	while (verdicts[i].setting != NULL && verdicts[i].setting != setting)
		i = (i + 1) & (VERDICTS - 1);
	return &verdicts[i];
}

static bool
is_among(const char *name, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (pg_strcasecmp(name, names[i]) == 0)
			return true;
	return false;
}

/* Settings of tessera are about this server, but for those that say how long a statement may wait, wherever a part of it does. */
static bool
is_ours_alone(const char *name)
{
	return strncmp(name, "tessera.", 8) == 0 && strcmp(name, "tessera.gate_timeout") != 0;
}

static void
make_verdicts(void)
{
	struct config_generic **settings = get_guc_variables();
	int			n = GetNumConfigOptions();

	for (int i = 0; i < n; i++)
	{
		struct config_generic *setting = settings[i];
		bool		denied = is_among(setting->name, denied_names, lengthof(denied_names)) || is_ours_alone(setting->name);

		if (denied || is_among(setting->name, always_names, lengthof(always_names)))
		{
			Verdict    *verdict = find_verdict(setting);

			verdict->setting = setting;
			verdict->denied = denied;
		}
	}
	verdicts_made = true;
}

static bool
is_mirrored(struct config_generic *setting)
{
	Verdict    *verdict;

	if (setting->context != PGC_USERSET && setting->context != PGC_SUSET)
		return false;
	/* The common case first: it has the server's own value. Those always mirrored are walked apart. */
	if (setting->source < PGC_S_GLOBAL || setting->source == PGC_S_OVERRIDE)
		return false;
	verdict = find_verdict(setting);
	return verdict->setting == NULL;
}

/* ---- fingerprint ---- */

static inline uint64
mix(uint64 hash, uint64 value)
{
	return hash_combine64(hash, hash_bytes_uint32_extended((uint32) value, value >> 32));
}

static uint64
hash_value(uint64 hash, struct config_generic *setting)
{
	switch (setting->vartype)
	{
		case PGC_BOOL:
			return mix(hash, *((struct config_bool *) setting)->variable);
		case PGC_INT:
			return mix(hash, (uint64) (uint32) *((struct config_int *) setting)->variable);
		case PGC_ENUM:
			return mix(hash, (uint64) (uint32) *((struct config_enum *) setting)->variable);
		case PGC_REAL:
			{
				uint64		bits;

				memcpy(&bits, ((struct config_real *) setting)->variable, sizeof(bits));
				return mix(hash, bits);
			}
		case PGC_STRING:
			{
				const char *value = *((struct config_string *) setting)->variable;

				return value ? hash_combine64(hash, hash_bytes_extended((const unsigned char *) value, strlen(value), hash)) : mix(hash, 1);
			}
	}
	return hash;
}

uint64
tessera_mirror_fingerprint(void)
{
	struct config_generic **settings = get_guc_variables();
	int			n = GetNumConfigOptions();
	uint64		hash = UINT64CONST(0x7465737365726121);

	if (!verdicts_made)
		make_verdicts();
	for (int i = 0; i < VERDICTS; i++)
		if (verdicts[i].setting && !verdicts[i].denied)
			hash = hash_value(hash, verdicts[i].setting);
	for (int i = 0; i < n; i++)
		if (settings[i]->source >= PGC_S_GLOBAL && is_mirrored(settings[i]))
			hash = hash_value(mix(hash, i), settings[i]);
	return hash <= 1 ? 2 : hash;
}

/* ---- values ---- */

/* An element of a text array literal. */
static void
append_element(StringInfo array, const char *value)
{
	appendStringInfoString(array, array->len > 1 ? ",\"" : "\"");
	for (; *value; value++)
	{
		if (*value == '"' || *value == '\\')
			appendStringInfoChar(array, '\\');
		appendStringInfoChar(array, *value);
	}
	appendStringInfoChar(array, '"');
}

static void
append_setting(StringInfo names, StringInfo values, struct config_generic *setting)
{
	char		buffer[64];
	const char *value = buffer;

	switch (setting->vartype)
	{
		case PGC_BOOL:
			value = *((struct config_bool *) setting)->variable ? "on" : "off";
			break;
		case PGC_INT:
			snprintf(buffer, sizeof(buffer), "%d", *((struct config_int *) setting)->variable);
			break;
		case PGC_REAL:
			snprintf(buffer, sizeof(buffer), "%.17g", *((struct config_real *) setting)->variable);
			break;
		case PGC_ENUM:
			value = config_enum_lookup_by_value((struct config_enum *) setting, *((struct config_enum *) setting)->variable);
			break;
		case PGC_STRING:
			value = *((struct config_string *) setting)->variable;
			if (value == NULL)
				return;
			break;
	}
	append_element(names, setting->name);
	append_element(values, value);
}

void
tessera_mirror_collect(char **names, char **values)
{
	struct config_generic **settings = get_guc_variables();
	int			n = GetNumConfigOptions();
	StringInfoData name_array;
	StringInfoData value_array;

	if (!verdicts_made)
		make_verdicts();
	initStringInfo(&name_array);
	initStringInfo(&value_array);
	appendStringInfoChar(&name_array, '{');
	appendStringInfoChar(&value_array, '{');
	for (int i = 0; i < n; i++)
	{
		Verdict    *verdict = find_verdict(settings[i]);

		if ((verdict->setting && !verdict->denied) || is_mirrored(settings[i]))
			append_setting(&name_array, &value_array, settings[i]);
	}
	appendStringInfoChar(&name_array, '}');
	appendStringInfoChar(&value_array, '}');
	*names = name_array.data;
	*values = value_array.data;
}
