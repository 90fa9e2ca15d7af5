/*
 * settings_mirror.c
 *	  Finds the settings to mirror by walking the server's own table of settings; see settings_mirror.h.
 *
 * No hook sees every way a setting can change (SET LOCAL, a function's SET clause, set_config, rollback), so the table itself is read each time:
 * those of its records that can matter, which are listed once.
 *
 * participant.c sends what is found here with the statements to the other nodes; session/internal_connection.c sets it there.
 *
 * Memory: the lists live until the backend exits.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"

#include "common/text.h"
#include "common/version_compat.h"
#include "transaction/settings_mirror.h"

/* About this connection, this transaction or this server; never mirrored, as is nearly everything of tessera's own. */
static const char *const denied_names[] = {
	"client_connection_check_interval", "client_encoding", "default_transaction_deferrable", "default_transaction_isolation",
	"default_transaction_read_only", "idle_in_transaction_session_timeout", "idle_session_timeout", "is_superuser", "local_preload_libraries",
	"post_auth_delay", "role", "seed", "session_authorization", "session_preload_libraries", "statement_timeout", "tcp_keepalives_count",
	"tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_user_timeout", "temp_tablespaces", "default_tablespace", "transaction_deferrable",
	"transaction_isolation",
	"transaction_read_only", "jit_provider", "dynamic_library_path", "log_min_messages", "log_min_error_statement", "log_statement",
	"log_duration", "log_min_duration_statement", "output_plugin_libraries",
};

/* They change what a value or a name means, or say who the client is, so the other server's own value must not count. */
static const char *const always_names[] = {
	"search_path", "DateStyle", "IntervalStyle", "TimeZone", "timezone_abbreviations", "extra_float_digits", "bytea_output", "array_nulls",
	"standard_conforming_strings", "backslash_quote", "escape_string_warning", "quote_all_identifiers", "transform_null_equals", "xmlbinary",
	"xmloption", "default_text_search_config", "row_security", "check_function_bodies", "application_name", "lc_monetary", "lc_numeric", "lc_time",
};

/* The server's own settings, found once: their records never move. Those of other contexts than USERSET and SUSET are in neither list. */
typedef struct BuiltinSettings
{
	struct config_generic **always;
	struct config_generic **others; /* mirrored if they have another value than the server's own */
	int			nalways;
	int			nothers;
	int			n;
} BuiltinSettings;

static BuiltinSettings builtin = {0};

/*
 * Settings of extensions and placeholders that may be mirrored: their places in the server's table. Records of these are added, replaced and
 * (placeholders) removed, which may move the others: the list holds as long as the table is as long as it was and all of these records are in their
 * places. Those of our own that are never mirrored are defined once, when the library is loaded, and stay: they are only counted.
 */
typedef struct CustomSettings
{
	int		   *places;
	struct config_generic **records;
	int			n;
	int			nours;
} CustomSettings;

static CustomSettings customs = {0};

static bool
is_among(const char *name, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (pg_strcasecmp(name, names[i]) == 0)
			return true;
	return false;
}

/*
 * Settings of tessera are about this server, but for those that say how long a statement may wait, wherever a part of it does, and whose its locks
 * are.
 */
static bool
is_ours_alone(const char *name)
{
	return strncmp(name, "tessera.", 8) == 0 && strcmp(name, "tessera.gate_timeout") != 0 && strcmp(name, "tessera.advisory_locks") != 0;
}

static void
list_builtin(struct config_generic **settings, int n)
{
	builtin.others = MemoryContextAlloc(TopMemoryContext, sizeof(struct config_generic *) * n);
	builtin.always = MemoryContextAlloc(TopMemoryContext, sizeof(struct config_generic *) * n);
	for (int i = 0; i < n; i++)
	{
		struct config_generic *setting = settings[i];

		if (setting->group == CUSTOM_OPTIONS)
			continue;
		builtin.n++;
		if (is_among(setting->name, always_names, lengthof(always_names)))
			builtin.always[builtin.nalways++] = setting;
		else if ((setting->context == PGC_USERSET || setting->context == PGC_SUSET) &&
				 !is_among(setting->name, denied_names, lengthof(denied_names)))
			builtin.others[builtin.nothers++] = setting;
	}
}

static bool
customs_hold(struct config_generic **settings, int n)
{
	if (customs.places == NULL || builtin.n + customs.nours + customs.n != n)
		return false;
	for (int i = 0; i < customs.n; i++)
		if (settings[customs.places[i]] != customs.records[i])
			return false;
	return true;
}

static void
list_customs(struct config_generic **settings, int n)
{
	int			size = Max(n - builtin.n, 1);
	int		   *places = MemoryContextAlloc(TopMemoryContext, sizeof(int) * size);
	struct config_generic **records = MemoryContextAlloc(TopMemoryContext, sizeof(struct config_generic *) * size);

	if (customs.places)
		pfree(customs.places);
	if (customs.records)
		pfree(customs.records);
	customs.places = places;
	customs.records = records;
	customs.n = customs.nours = 0;
	for (int i = 0; i < n; i++)
	{
		if (settings[i]->group != CUSTOM_OPTIONS)
			continue;
		if (is_ours_alone(settings[i]->name) && (settings[i]->flags & GUC_CUSTOM_PLACEHOLDER) == 0)
			customs.nours++;
		else
		{
			places[customs.n] = i;
			records[customs.n++] = settings[i];
		}
	}
}

/* The server's table of settings, with the lists made of it; ended by tessera_settings_done. */
static struct config_generic **
listed_settings(void)
{
	int			n;
	struct config_generic **settings = tessera_all_settings(&n);

	if (builtin.always == NULL)
		list_builtin(settings, n);
	if (!customs_hold(settings, n))
		list_customs(settings, n);
	return settings;
}

/* True if its value differs from the server's own. */
static inline bool
is_set(const struct config_generic *setting)
{
	return setting->source >= PGC_S_GLOBAL && setting->source != PGC_S_OVERRIDE;
}

/*
 * The role by whose rights it was set; InvalidOid: by all rights. A placeholder of a module that is not loaded here may be a setting for superusers
 * elsewhere, so the far end has to know, as the server does when the module is loaded later.
 */
static inline Oid
setter_of(const struct config_generic *setting)
{
	if (setting->group != CUSTOM_OPTIONS && setting->context == PGC_USERSET)
		return InvalidOid;
	return setting->scontext == PGC_USERSET || setting->scontext == PGC_BACKEND ? setting->srole : InvalidOid;
}

static inline bool
is_mirrored_custom(const struct config_generic *setting)
{
	return is_set(setting) && (setting->context == PGC_USERSET || setting->context == PGC_SUSET) && !is_ours_alone(setting->name);
}

/* ---- fingerprint ---- */

static inline uint64
mix(uint64 hash, uint64 value)
{
	hash = (hash ^ value) * UINT64CONST(0x9e3779b97f4a7c15);
	return hash ^ hash >> 32;
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
	struct config_generic **settings = listed_settings();
	uint64		hash = UINT64CONST(0x7465737365726121);

	for (int i = 0; i < builtin.nalways; i++)
		hash = hash_value(hash, builtin.always[i]);
	for (int i = 0; i < builtin.nothers; i++)
		if (is_set(builtin.others[i]))
			hash = hash_value(mix(hash, (uint64) setter_of(builtin.others[i]) << 32 | i), builtin.others[i]);
	for (int i = 0; i < customs.n; i++)
		if (is_mirrored_custom(settings[customs.places[i]]))
			hash = hash_value(mix(hash, (uint64) setter_of(settings[customs.places[i]]) << 32 | (customs.places[i] + builtin.nothers)),
							  settings[customs.places[i]]);
	tessera_settings_done(settings);
	return hash <= 1 ? 2 : hash;
}

/* ---- values ---- */

static void
append_setter(StringInfo setters, Oid role)
{
	if (!OidIsValid(role))
		appendStringInfoString(setters, setters->len > 1 ? ",NULL" : "NULL");
	else
	{
		char	   *name = GetUserNameFromId(role, true);

		tessera_append_array_element(setters, name ? name : "");
	}
}

static void
append_setting(StringInfo names, StringInfo values, StringInfo setters, struct config_generic *setting)
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
	tessera_append_array_element(names, setting->name);
	tessera_append_array_element(values, value);
	append_setter(setters, setter_of(setting));
}

void
tessera_mirror_collect(TesseraMirroredSettings *mirrored)
{
	struct config_generic **settings = listed_settings();
	StringInfoData name_array;
	StringInfoData value_array;
	StringInfoData setter_array;

	initStringInfo(&name_array);
	initStringInfo(&value_array);
	initStringInfo(&setter_array);
	appendStringInfoChar(&name_array, '{');
	appendStringInfoChar(&value_array, '{');
	appendStringInfoChar(&setter_array, '{');
	for (int i = 0; i < builtin.nalways; i++)
		append_setting(&name_array, &value_array, &setter_array, builtin.always[i]);
	for (int i = 0; i < builtin.nothers; i++)
		if (is_set(builtin.others[i]))
			append_setting(&name_array, &value_array, &setter_array, builtin.others[i]);
	for (int i = 0; i < customs.n; i++)
		if (is_mirrored_custom(settings[customs.places[i]]))
			append_setting(&name_array, &value_array, &setter_array, settings[customs.places[i]]);
	tessera_settings_done(settings);
	appendStringInfoChar(&name_array, '}');
	appendStringInfoChar(&value_array, '}');
	appendStringInfoChar(&setter_array, '}');
	mirrored->names = name_array.data;
	mirrored->values = value_array.data;
	mirrored->setters = setter_array.data;
}
