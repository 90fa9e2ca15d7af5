/*
 * exchange.h
 *	  The data plane of a migration: one ZeroMQ socket pair under CURVE, with keys made for this one migration.
 *
 * The donor binds a ROUTER to tcp on the given address with an ephemeral port and admits exactly one client key (ZAP); the recipient's DEALER
 * connects and knows the donor's key. One process owns an exchange; the context is made in that process, never before fork. All calls are
 * non-blocking but tessera_exchange_wait, which waits on the socket and the process latch together. Memory: messages received are owned by the
 * exchange until the next receive or close. An exchange is closed by tessera_exchange_close or when its memory context is reset.
 *
 * One exchange is one connection: a broken one is not made again, and what was queued is lost. The recipient is told by 08006 of its next send, or of
 * its next receive after all that had arrived; the donor by 08006 of a send only (a recipient may leave when it has what it needs). A donor that
 * waits for room also receives, else it may not notice that the recipient has gone with requests unread. Keep requests in flight far below 1000, best
 * up to 16.
 */
#ifndef TESSERA_EXCHANGE_H
#define TESSERA_EXCHANGE_H

#include "postgres.h"

#define TESSERA_CURVE_KEY_SIZE 41	/* Z85 text with nul */

typedef struct TesseraExchange TesseraExchange;

typedef struct TesseraExchangeKeys
{
	char		public_key[TESSERA_CURVE_KEY_SIZE];
	char		secret_key[TESSERA_CURVE_KEY_SIZE];
} TesseraExchangeKeys;

/* Ports to choose from, first to last; 0 to 0: any that is free. */
typedef struct TesseraPorts
{
	int			first;
	int			last;
} TesseraPorts;

/* A new key pair. ERROR 0A000 if libzmq was built without CURVE. */
extern void tessera_exchange_make_keys(TesseraExchangeKeys *keys);

/* Donor: binds to one of the ports of an address; peer_public_key is the only client admitted. Current context owns the result. */
extern TesseraExchange *tessera_exchange_bind(const char *address, TesseraPorts ports, const TesseraExchangeKeys *keys, const char *peer_public_key);

/* The endpoint bound to ("tcp://127.0.0.1:40123"), palloc'd. */
extern char *tessera_exchange_endpoint(TesseraExchange *exchange);

/* Recipient: connects. */
extern TesseraExchange *tessera_exchange_connect(const char *endpoint, const TesseraExchangeKeys *keys, const char *peer_public_key);

/* Sends one message; false if the queue is full (wait for writable). ERROR 08006 if the peer is gone for good. The data is copied. */
extern bool tessera_exchange_send(TesseraExchange *exchange, const void *data, Size size);

/* Receives one message if there is one (false: none). *data is valid until the next call. ERROR 54000 for one over the limit (256 MB). */
extern bool tessera_exchange_receive(TesseraExchange *exchange, const void **data, Size *size);

/*
 * Waits until the socket can be read (and written, if want_write), the process latch is set (it is reset), the postmaster dies, or timeout_ms.
 * Returns true if the socket is ready. Interrupts are checked. Shows as wait event Extension.
 */
extern bool tessera_exchange_wait(TesseraExchange *exchange, bool want_write, long timeout_ms);

extern void tessera_exchange_close(TesseraExchange *exchange);

#endif							/* TESSERA_EXCHANGE_H */
