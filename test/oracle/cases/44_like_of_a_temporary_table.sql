-- LIKE copies the columns of a temporary table; afterwards nothing hangs on it.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c44 CASCADE;
CREATE SCHEMA c44;
CREATE TEMP TABLE staging (id int, name text DEFAULT 'none');
CREATE TABLE c44.like_staging (LIKE staging INCLUDING DEFAULTS);
CREATE TABLE c44.like_temp (LIKE pg_temp.staging);
