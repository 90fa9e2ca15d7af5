/*
 * fuzz_message.c
 *	  libFuzzer target: any bytes as a message, its payload as a frame. Finds crashes, reads out of bounds, and messages that do not survive being
 *	  encoded again.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/frame.h"
#include "codec/message.h"

/* As the receiver has one; small, so that a claim is not mistaken for a leak. */
#define CONTENT_LIMIT ((size_t) 1 << 20)

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void *
take_memory(size_t size, void *arg)
{
	(void) arg;
	return malloc(size);
}

static void
read_frame(const void *frame, size_t size)
{
	const char *error;
	size_t		content;
	char	   *buffer;

	if (!tessera_frame_content_size(frame, size, CONTENT_LIMIT, &content, &error))
		return;
	buffer = malloc(content > 0 ? content : 1);
	(void) tessera_frame_decompress(buffer, content, frame, size, &error);
	free(buffer);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	TesseraMessage message;
	TesseraMessage again;
	const char *error;
	size_t		encoded_size;
	void	   *encoded;

	read_frame(data, size);
	if (!tessera_message_decode(&message, data, size, &error))
		return 0;
	if (message.payload != NULL)
		read_frame(message.payload, message.payload_size);
	encoded = tessera_message_encode(&message, &encoded_size, take_memory, NULL, &error);
	if (encoded == NULL || encoded_size != size || !tessera_message_decode(&again, encoded, encoded_size, &error))
		abort();
	free(encoded);
	return 0;
}
