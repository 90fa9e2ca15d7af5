/*
 * zap.h
 *	  Who may connect to a CURVE socket: answers libzmq's authentication requests (ZAP, ZeroMQ RFC 27) and admits one client key.
 *
 * Knows nothing of the server, and must not: its handler runs on a thread of its own.
 */
#ifndef TESSERA_ZAP_H
#define TESSERA_ZAP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define TESSERA_CURVE_KEY_BYTES 32

/* The user id that messages of the admitted client carry (zmq_msg_gets "User-Id"). */
#define TESSERA_ZAP_USER "recipient"

typedef struct TesseraZap
{
	void	   *socket;			/* the handler thread's alone while it runs */
	pthread_t	thread;
	bool		running;
	uint8_t		admitted[TESSERA_CURVE_KEY_BYTES];
} TesseraZap;

/*
 * Starts the handler in a context, for all its CURVE servers, before the first of them binds. *zap stays in place until tessera_zap_join. False, and
 * errno set, on failure; tessera_zap_join is then due all the same.
 */
extern bool tessera_zap_start(TesseraZap *zap, void *zmq, const uint8_t *admitted);

/* Waits for the end of the handler and closes its socket. zmq_ctx_shutdown ends it: call that first. */
extern void tessera_zap_join(TesseraZap *zap);

#endif							/* TESSERA_ZAP_H */
