/*
 * balancer_settings.c
 *	  What the balancer goes by; see balancer_settings.h.
 *
 * Settings are the server's, so a standby of the config node should have the same. Switches are rows of tessera.setting, which it has by replication.
 */
#include "postgres.h"

#include "pgtime.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "balancer/balancer_settings.h"
#include "common/spi_row.h"

#define FIRST_PAUSE_MS 5000
#define LONGEST_PAUSE_MS 300000
#define RUN_BYTES (256.0 * 1024 * 1024)
#define RUN_CHUNKS 2000			/* some 50 us each while the gate is closed */
#define MAX_ACTIONS 1000

int			tessera_balancer_interval = 10;
static int	policy = TESSERA_BY_BYTES;
static double threshold = 0.1;
static char *window = NULL;
static bool merges = true;
static int	merge_after = 600;

static const struct config_enum_entry policies[] = {
	{"bytes", TESSERA_BY_BYTES, false},
	{"count", TESSERA_BY_COUNT, false},
	{"load", TESSERA_BY_LOAD, false},
	{NULL, 0, false}
};

/* A node that has failed. */
typedef struct Failed
{
	int32		node_id;
	int			pause_ms;
	TimestampTz until;
} Failed;

static HTAB *failed_nodes = NULL;	/* lives as long as the process */


double
tessera_merge_after_s(void)
{
	return merge_after;
}


/* The window: times of the day in the time zone of the server's log, as a session's own says nothing */

/* Reads "hh:mm" as minutes since midnight; the rest of the text follows. -1: it is none. */
static int
minutes_of(const char **text)
{
	unsigned	hours;
	unsigned	minutes;
	int			length = 0;

	if (sscanf(*text, " %2u:%2u %n", &hours, &minutes, &length) < 2 || length == 0 || hours > 24 || minutes > 59 || hours * 60 + minutes > 24 * 60)
		return -1;
	*text += length;
	return (int) (hours * 60 + minutes);
}

/* "hh:mm-hh:mm"; false: it is none of the kind. */
static bool
parse_window(const char *text, int *from, int *to)
{
	*from = minutes_of(&text);
	if (*from < 0 || *text != '-')
		return false;
	text++;
	*to = minutes_of(&text);
	return *to >= 0 && *text == '\0';
}

static bool
check_window(char **value, void **extra, GucSource source)
{
	int			from;
	int			to;

	if (*value == NULL || **value == '\0' || parse_window(*value, &from, &to))
		return true;
	GUC_check_errdetail("It is empty, or two times of the day like \"22:00-06:00\".");
	return false;
}

static bool
in_window(void)
{
	int			from;
	int			to;
	int			now;
	struct pg_tm tm;
	fsec_t		fsec;
	int			tz;

	if (window == NULL || window[0] == '\0' || !parse_window(window, &from, &to))
		return true;
	if (timestamp2tm(GetCurrentTimestamp(), &tz, &tm, &fsec, NULL, log_timezone) != 0)
		return true;
	now = tm.tm_hour * 60 + tm.tm_min;
	return from <= to ? now >= from && now < to : now >= from || now < to;
}


/* Switches of the cluster */

void
tessera_balancer_switches(TesseraBalancerSwitches *switches)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	uint64		n;

	memset(switches, 0, sizeof(*switches));
	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT name, value, CASE WHEN name = 'balancer_paused_until' THEN value::timestamptz <= clock_timestamp() ELSE false END "
						"FROM tessera.setting"
						" WHERE name IN ('balancer', 'balancer_paused_until')", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		char	   *name = spi_row_text(i, 1);
		char	   *value = spi_row_text(i, 2);

		if (strcmp(name, "balancer") == 0)
			switches->stopped = strcmp(value, "off") == 0;
		else if (!DatumGetBool(spi_row_value(i, 3)))
		{
			switches->paused = true;
			switches->reason = MemoryContextStrdup(caller, psprintf("paused until %s: tessera.pause_balancer()", value));
		}
	}
	tessera_spi_end(&spi);
	if (switches->reason == NULL && switches->stopped)
		switches->reason = "stopped: tessera.start_balancer() starts it";
	if (switches->reason == NULL && !in_window())
		switches->reason = psprintf("outside of tessera.balancer_window (%s)", window);
}

void
tessera_balancer_policy_settings(TesseraPolicySettings *settings)
{
	TesseraBalancerSwitches switches;

	tessera_balancer_switches(&switches);
	settings->measure = policy;
	settings->balance = switches.reason == NULL;
	settings->merge = merges && switches.reason == NULL;
	settings->threshold = threshold;
	settings->run_bytes = RUN_BYTES;
	settings->run_chunks = RUN_CHUNKS;
	settings->max_actions = MAX_ACTIONS;
}


/* Nodes that are left alone for a while */

static Failed *
failed_node(int32 node_id, HASHACTION action)
{
	if (failed_nodes == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(int32),.entrysize = sizeof(Failed),.hcxt = TopMemoryContext};

		failed_nodes = hash_create("tessera nodes that failed", 16, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	return hash_search(failed_nodes, &node_id, action, NULL);
}

bool
tessera_balancer_node_usable(int32 node_id)
{
	const Failed *failed = failed_node(node_id, HASH_FIND);

	return failed == NULL || failed->until <= GetCurrentTimestamp();
}

void
tessera_balancer_node_failed(int32 node_id)
{
	Failed	   *failed = failed_node(node_id, HASH_FIND);

	if (failed == NULL)
	{
		failed = failed_node(node_id, HASH_ENTER);
		failed->pause_ms = FIRST_PAUSE_MS / 2;
	}
	failed->pause_ms = Min(failed->pause_ms * 2, LONGEST_PAUSE_MS);
	failed->until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), failed->pause_ms);
}

void
tessera_balancer_node_answered(int32 node_id)
{
	(void) failed_node(node_id, HASH_REMOVE);
}

void
tessera_balancer_settings_init(void)
{
	DefineCustomIntVariable("tessera.balancer_interval", "Time between two rounds of the balancer. Counts on the config node.", NULL,
							&tessera_balancer_interval, 10, 1, 3600, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomEnumVariable("tessera.balancer_policy", "What the balancer evens out: bytes, the number of chunks, or load. Counts on the config "
							 "node.",
							 NULL, &policy, TESSERA_BY_BYTES, policies, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomRealVariable("tessera.balancer_threshold",
							 "By less than this share of the average two shards may differ before rows are moved. Counts on the config node.", NULL,
							 &threshold, 0.1, 0.01, 10, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("tessera.balancer_window",
							   "Times of the day between which the balancer evens out, such as 22:00-06:00; empty: always. Counts on the config "
								   "node.",
							   NULL, &window, "", PGC_SIGHUP, 0, check_window, NULL, NULL);
	DefineCustomBoolVariable("tessera.balancer_merge", "Small chunks that see little use are merged with their neighbours. Counts on the config "
							 "node.",
							 NULL, &merges, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.balancer_merge_after", "Chunks that have moved within this time are not merged. Counts on the config node.",
							NULL,
							&merge_after, 600, 0, 86400 * 30, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}
