# PostGIS: geometries as columns of sharded, placed and replicated tables, analyzed, in conditions, joins, indexes and moves, as on a plain server.
# Its selectivity functions take it for granted that a column with statistics has those of its own kinds.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $sharedir = `pg_config --sharedir`;
chomp $sharedir;
plan skip_all => 'PostGIS is not installed' unless -e "$sharedir/extension/postgis.control";

my $c = TesseraCluster->new('postgis');
$c->create(shards => 2, routers => 1);
$c->everywhere('CREATE EXTENSION postgis');
$c->everywhere('CREATE TABLE places (id int PRIMARY KEY, at geometry(Point, 4326), on_earth geography(Point, 4326), area geometry)');
$c->everywhere('CREATE TABLE zones (id int PRIMARY KEY, shape geometry(Polygon, 4326)); CREATE TABLE kinds (id int PRIMARY KEY, box box2d)');
$c->query('s1', "SELECT tessera.shard_table('places', 'id'); SELECT tessera.replicate_table('kinds')");
$c->query('s1', "SELECT tessera.move_range('places', 251, tessera.maxkey(), 's2')");
$c->everywhere("INSERT INTO places SELECT g, ST_SetSRID(ST_MakePoint(g % 40 / 10.0, g % 25 / 10.0), 4326), " .
	"ST_MakePoint(g % 40 / 10.0, g % 25 / 10.0)::geography, " .
	"CASE WHEN g <= 250 THEN ST_Buffer(ST_MakePoint(g, g), 3) END FROM generate_series(1, 500) g");
$c->everywhere('INSERT INTO zones SELECT g, ST_MakeEnvelope(g, g, g + 1, g + 1, 4326) FROM generate_series(0, 3) g');
$c->everywhere("INSERT INTO kinds SELECT g, 'BOX(0 0,1 1)'::box2d FROM generate_series(1, 3) g");
$c->everywhere('CREATE INDEX ON places USING gist (at); CREATE INDEX ON places USING gist (on_earth)');

my @queries = (
	"SELECT count(*), sum(id) FROM places WHERE at && ST_MakeEnvelope(0, 0, 1, 1, 4326)",
	"SELECT count(*), sum(id) FROM places WHERE ST_Intersects(at, ST_MakeEnvelope(1, 1, 2, 2, 4326))",
	"SELECT count(*), sum(id) FROM places WHERE ST_DWithin(on_earth, ST_MakePoint(1, 1)::geography, 50000)",
	"SELECT count(*), sum(id) FROM places WHERE area && ST_MakeEnvelope(10, 10, 20, 20)", "SELECT count(*) FROM places WHERE area IS NULL",
	"SELECT z.id, count(*) FROM zones z JOIN places p ON ST_Contains(z.shape, p.at) GROUP BY z.id ORDER BY z.id",
	"SELECT count(*) FROM places a JOIN places b ON ST_DWithin(a.at, b.at, 0.05) WHERE a.id < 20",
	"SELECT id FROM places ORDER BY at <-> ST_SetSRID(ST_MakePoint(2.03, 1.01), 4326), id LIMIT 5",
	"SELECT count(*), ST_AsText(ST_Extent(at)) FROM places", "SELECT count(DISTINCT at) FROM places",
	"SELECT count(*) FROM places WHERE at = ST_SetSRID(ST_MakePoint(1, 1), 4326)",
	"SELECT ST_AsEWKT(at), ST_AsText(on_earth::geometry) FROM places WHERE id IN (7, 407) ORDER BY id", "SELECT count(*), min(box::text) FROM kinds",
	"SELECT ST_AsText(ST_Transform(at, 3857), 0) FROM places WHERE id = 300");
sub all_alike
{
	my ($what) = @_;
	foreach my $query (@queries)
	{
		my ($alike, $difference) = $c->same_everywhere($query);
		ok($alike, "$what: $query") or diag $difference;
		like($c->query('r1', "EXPLAIN $query"), qr/cost=/, "$what: EXPLAIN");
	}
	return;
}

all_alike('never analyzed');
$c->everywhere('ANALYZE');
all_alike('analyzed');
$c->query('s1', "SELECT tessera.move_range('places', 100, 200, 's2')");
$c->everywhere("UPDATE places SET at = ST_Translate(at, 0.1, 0) WHERE at && ST_MakeEnvelope(0, 0, 1, 1, 4326)");
all_alike('moved and updated');
is($c->query('r1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all nodes agree');

done_testing();
