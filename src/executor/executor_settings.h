/*
 * executor_settings.h
 *	  Settings that the executor reads; defined in executor_settings.c, registered by tessera_executor_settings_init.
 */
#ifndef TESSERA_EXECUTOR_SETTINGS_H
#define TESSERA_EXECUTOR_SETTINGS_H

extern int	tessera_gate_timeout;	/* ms a statement waits for a gate, or for stale routing to settle */
extern int	tessera_log_min_gate_wait;	/* ms at a gate from which on a statement is logged; -1: none */
extern bool tessera_stream_rows;	/* rows one by one off the wire, instead of whole results in memory */
extern int	tessera_sent_rows_limit;	/* kB of rows that a modification reads elsewhere and sends along */

extern void tessera_executor_settings_init(void);

#endif							/* TESSERA_EXECUTOR_SETTINGS_H */
