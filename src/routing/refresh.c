#include "postgres.h"

#include "routing/refresh.h"

void
tessera_refresh_init(void)
{
}
