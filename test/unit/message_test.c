/*
 * message_test.c
 *	  Messages of an exchange: what is encoded is decoded the same; a document that differs in any way from what encoding writes is refused or gives
 *	  another message that encodes to it, never a crash and never a read out of bounds (every buffer here is allocated at its exact size).
 */
#include "codec/message.h"

#include <stdlib.h>
#include <string.h>

#include <bson/bson.h>

#include "tap.h"

static void *
take_memory(size_t size, void *arg)
{
	(void) arg;
	return malloc(size);
}

static void *
take_nothing(size_t size, void *arg)
{
	(void) size;
	(void) arg;
	return NULL;
}

/* The sample messages: one of each kind, with and without payload. */
#define SAMPLES 9

static TesseraMessage
sample(int number)
{
	static const TesseraMessageKind kinds[SAMPLES] = {
		TESSERA_MSG_CLONE_REQUEST, TESSERA_MSG_CLONE_BATCH, TESSERA_MSG_CLONE_BATCH, TESSERA_MSG_MODS_REQUEST, TESSERA_MSG_MODS_BATCH,
		TESSERA_MSG_MODS_BATCH, TESSERA_MSG_ERROR, TESSERA_MSG_VERIFY, TESSERA_MSG_VERIFIED
	};
	TesseraMessage message;

	memset(&message, 0, sizeof(message));
	message.kind = kinds[number];
	for (int i = 0; i < 16; i++)
		message.migration[i] = (uint8_t) (200 + i);
	message.sequence = INT64_C(0x0102030405060708);
	message.table = -1;
	if (number == 1 || number == 4)
		message.table = 3;
	if (number == 1 || number == 4 || number == 7)
	{
		message.rows = 1000;
		message.payload = "compressed\0rows";
		message.payload_size = 15;
	}
	if (number == 2 || number == 5 || number == 7)
		message.last = true;
	if (number >= 3 && number <= 5)
		message.lsn = UINT64_C(0xfedcba9876543210);
	if (number == 6)
	{
		message.sqlstate = "40P01";
		message.text = "Verklemmung in \xc3\x9c" "bertragung";
	}
	return message;
}

static bool
same_text(const char *a, const char *b)
{
	return (a == NULL) == (b == NULL) && (a == NULL || strcmp(a, b) == 0);
}

static bool
same(const TesseraMessage *a, const TesseraMessage *b)
{
	return a->kind == b->kind && memcmp(a->migration, b->migration, 16) == 0 && a->sequence == b->sequence && a->table == b->table &&
		a->rows == b->rows && a->lsn == b->lsn && a->last == b->last && same_text(a->sqlstate, b->sqlstate) && same_text(a->text, b->text) &&
		a->payload_size == b->payload_size && (a->payload == NULL) == (b->payload == NULL) &&
		(a->payload == NULL || memcmp(a->payload, b->payload, a->payload_size) == 0);
}

static unsigned char *
encoded(TesseraMessage message, size_t *size)
{
	const char *error = NULL;

	return tessera_message_encode(&message, size, take_memory, NULL, &error);
}

/* True if the document is decoded, and says nothing that its own encoding would not say. Copies it to its exact size first. */
static bool
decodes(const unsigned char *data, size_t size)
{
	unsigned char *copy = malloc(size > 0 ? size : 1);
	unsigned char *again = NULL;
	const char *error = NULL;
	TesseraMessage message;
	size_t		again_size = 0;
	bool		good;

	memcpy(copy, data, size);
	good = tessera_message_decode(&message, copy, size, &error);
	if (good)
	{
		again = encoded(message, &again_size);
		if (again == NULL || again_size != size || memcmp(again, copy, size) != 0)
		{
			printf("# a document that is not what its message encodes to was accepted\n");
			abort();
		}
	}
	else if (error == NULL)
	{
		printf("# refused without a reason\n");
		abort();
	}
	free(again);
	free(copy);
	return good;
}

static void
test_round_trips(void)
{
	bool		good = true;
	bool		truncated = false;
	bool		extended = false;

	for (int number = 0; number < SAMPLES; number++)
	{
		TesseraMessage message = sample(number);
		TesseraMessage decoded;
		const char *error = NULL;
		size_t		size = 0;
		unsigned char *data = encoded(message, &size);
		unsigned char *longer = malloc(size + 1);

		good = data != NULL && tessera_message_decode(&decoded, data, size, &error) && same(&message, &decoded) && good;
		good = decodes(data, size) && good;
		for (size_t cut = 0; cut < size; cut++)
			truncated = decodes(data, cut) || truncated;
		memcpy(longer, data, size);
		longer[size] = 0;
		extended = decodes(longer, size + 1) || extended;
		/* A length that fits makes the byte part of the document. */
		longer[0]++;
		extended = decodes(longer, size + 1) || extended;
		free(longer);
		free(data);
	}
	check(good, "each kind of message, with and without payload: round trip");
	check(!truncated, "truncated at every byte: refused");
	check(!extended, "a byte more: refused");
}

/* Cuts the document at every byte with a length and an end that fit, so that only its fields can show the damage. */
static void
test_consistent_truncation(void)
{
	bool		accepted = false;

	for (int number = 0; number < SAMPLES; number++)
	{
		size_t		size = 0;
		unsigned char *data = encoded(sample(number), &size);

		for (size_t cut = 5; cut < size; cut++)
		{
			unsigned char *copy = malloc(cut);

			memcpy(copy, data, cut);
			copy[0] = (unsigned char) (cut & 0xff);
			copy[1] = (unsigned char) (cut >> 8);
			copy[cut - 1] = 0;
			accepted = decodes(copy, cut) || accepted;
			free(copy);
		}
		free(data);
	}
	check(!accepted, "truncated at every byte, with a length that fits: refused");
}

static void
test_flips(void)
{
	size_t		accepted = 0;

	for (int number = 0; number < SAMPLES; number++)
	{
		size_t		size = 0;
		unsigned char *data = encoded(sample(number), &size);

		for (size_t i = 0; i < size; i++)
		{
			for (int value = 0; value < 256; value++)
			{
				unsigned char old = data[i];

				data[i] = (unsigned char) value;
				if (value != old)
					accepted += decodes(data, size);
				data[i] = old;
			}
		}
		free(data);
	}
	check(accepted > 0, "each byte set to each value: refused, or another good message");
}

static bool
accepts(TesseraMessage message)
{
	size_t		size = 0;
	unsigned char *data = encoded(message, &size);

	free(data);
	return data != NULL;
}

static void
test_encoding_refuses(void)
{
	TesseraMessage message;
	const char *error = NULL;
	size_t		size;

	message = sample(0);
	message.kind = 0;
	check(!accepts(message), "encode: kind 0 is refused");
	message.kind = TESSERA_MSG_VERIFIED + 1;
	check(!accepts(message), "encode: a kind too high is refused");
	message = sample(1);
	message.table = -2;
	check(!accepts(message), "encode: table index -2 is refused");
	message = sample(1);
	message.rows = -1;
	check(!accepts(message), "encode: a negative number of rows is refused");
	message = sample(1);
	message.payload = NULL;
	check(!accepts(message), "encode: a payload size without payload is refused");
	message.payload_size = 0;
	check(!accepts(message), "encode: rows without payload are refused");
	message = sample(1);
	message.payload_size = (size_t) INT32_MAX;
	check(!accepts(message), "encode: a document over 2 GB is refused before it is allocated");
	message.payload_size = SIZE_MAX;
	check(!accepts(message), "encode: a size that would wrap is refused");
	message = sample(6);
	message.sqlstate = "40p01";
	check(!accepts(message), "encode: a bad sqlstate is refused");
	message.sqlstate = "40P011";
	check(!accepts(message), "encode: a sqlstate too long is refused");
	message.sqlstate = NULL;
	check(!accepts(message), "encode: an error without sqlstate is refused");
	message = sample(6);
	message.text = "caf\xe9";
	check(!accepts(message), "encode: text that is not UTF-8 is refused");
	message.text = "";
	check(accepts(message), "encode: an empty text is accepted");
	message = sample(0);
	check(tessera_message_encode(&message, &size, take_nothing, NULL, &error) == NULL && strcmp(error, "out of memory") == 0,
		  "encode: no memory is an error");
}

/* What a document written by hand has wrong. */
typedef enum Fault
{
	NO_FAULT,
	UNKNOWN_FIELD,
	FOREIGN_FIELD,
	DOUBLED_FIELD,
	MISSING_FIELD,
	WRONG_TYPE,
	WRONG_SUBTYPE,
	SHORT_MIGRATION,
	OTHER_VERSION,
	UNKNOWN_KIND,
	SUBDOCUMENT,
	FAULTS
} Fault;

static const char *const fault_names[FAULTS] = {
	"document by hand: accepted", "unknown field: refused", "field of another kind: refused", "doubled field: refused", "missing field: refused",
	"wrong type: refused", "wrong binary subtype: refused", "short migration id: refused", "other version: refused", "unknown kind: refused",
	"document inside: refused"
};

static bool
clone_request_with(Fault fault)
{
	uint8_t		id[16] = {1, 2, 3};
	bson_t		document;
	bson_t		inner;
	bool		good;

	bson_init(&document);
	bson_append_int32(&document, "version", -1, fault == OTHER_VERSION ? 2 : 1);
	bson_append_int32(&document, "kind", -1, fault == UNKNOWN_KIND ? 99 : TESSERA_MSG_CLONE_REQUEST);
	bson_append_binary(&document, "migration", -1, fault == WRONG_SUBTYPE ? BSON_SUBTYPE_BINARY : BSON_SUBTYPE_UUID, id,
					   fault == SHORT_MIGRATION ? 15 : 16);
	if (fault == WRONG_TYPE)
		bson_append_double(&document, "sequence", -1, 1.0);
	else if (fault != MISSING_FIELD)
		bson_append_int64(&document, "sequence", -1, 1);
	if (fault == DOUBLED_FIELD)
		bson_append_int64(&document, "sequence", -1, 1);
	if (fault == UNKNOWN_FIELD)
		bson_append_int64(&document, "colour", -1, 1);
	if (fault == FOREIGN_FIELD)
		bson_append_int64(&document, "lsn", -1, 1);
	if (fault == SUBDOCUMENT)
	{
		bson_append_document_begin(&document, "text", -1, &inner);
		bson_append_document_end(&document, &inner);
	}
	good = decodes(bson_get_data(&document), document.len);
	bson_destroy(&document);
	return good;
}

/* An error message whose text has a nul inside, which C would cut there. */
static void
test_nul_in_text(void)
{
	size_t		size = 0;
	TesseraMessage message = sample(6);
	unsigned char *data;

	message.text = "aXb";
	data = encoded(message, &size);
	data[size - 4] = '\0';
	check(!decodes(data, size), "nul inside the text: refused");
	data[size - 4] = 0xff;
	check(!decodes(data, size), "text that is not UTF-8: refused");
	free(data);
}

int
main(void)
{
	tessera_message_init(malloc, calloc, realloc, free);
	test_round_trips();
	test_consistent_truncation();
	test_flips();
	test_encoding_refuses();
	for (int fault = NO_FAULT; fault < FAULTS; fault++)
		check(clone_request_with((Fault) fault) == (fault == NO_FAULT), fault_names[fault]);
	test_nul_in_text();
	return finish();
}
