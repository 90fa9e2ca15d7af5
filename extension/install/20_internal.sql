-- Calls between nodes that C functions answer, made of src/control/calls.def. Those that belong to a user's statement run as that user, so everybody
-- may execute them (90_privileges.sql); they refuse whoever is not another node (src/session/internal_connection.c).
@calls@

