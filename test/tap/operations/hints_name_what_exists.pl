# What a message tells to use exists: each name tessera.x in a text of the C code and of the SQL files, and each function named in a hint, is looked
# up in the catalog of an installed extension.
use strict;
use warnings;

use File::Find;
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('hints');
$c->start_node('s1', extension => 1);
my $root = "$FindBin::Bin/../../..";

my %known = map { $_ => 1 } split /\n/, $c->query('s1', q{SELECT proname FROM pg_proc WHERE pronamespace = 'tessera'::regnamespace
	UNION SELECT relname FROM pg_class WHERE relnamespace = 'tessera'::regnamespace UNION SELECT typname FROM pg_type
	WHERE typnamespace = 'tessera'::regnamespace
	UNION SELECT opcname FROM pg_opclass WHERE opcnamespace = 'tessera'::regnamespace
	UNION SELECT substr(name, 9) FROM pg_settings WHERE name LIKE 'tessera.%'});
my %functions = map { $_ => 1 } split /\n/, $c->query('s1', 'SELECT DISTINCT proname FROM pg_proc');
# Settings that SHOW ALL leaves out, and names of files.
$known{$_} = 1 foreach qw(session_user so control);
cmp_ok(scalar(keys %known), '>', 200, 'the catalog is there');

# Adjacent literals are one text, as the compiler sees them. Comments go.
sub texts
{
	my ($source) = @_;
	my @texts;
	$source =~ s{("(?:\\.|[^"\\\n])*")|/\*.*?\*/}{defined $1 ? $1 : ' '}gse;
	while ($source =~ /((?:"(?:\\.|[^"\\\n])*"\s*)+)/g)
	{
		my $text = $1;
		$text =~ s/"\s*"//g;
		$text =~ s/^"|"\s*$//g;
		push @texts, $text;
	}
	return @texts;
}

my ($ntexts, $nhints, %wrong) = (0, 0);

sub check_text
{
	my ($file, $text) = @_;
	while ($text =~ /\btessera\.([a-z_][a-z_0-9]*)/g)
	{
		$ntexts++;
		$wrong{"$file: tessera.$1: $text"} = 1 unless $known{$1};
	}
	return;
}

sub check_hint
{
	my ($file, $hint) = @_;
	$nhints++;
	while ($hint =~ /(?<![\w.])([a-z]+(?:_[a-z]+)+)\(/g)
	{
		$wrong{"$file: $1(): $hint"} = 1 unless $functions{$1};
	}
	return;
}

find(
	{
		no_chdir => 1,
		wanted => sub {
			my $file = $File::Find::name;
			return unless $file =~ /\.(c|h|sql)$/ && $file =~ m{^\Q$root\E/(src|bgworkers|extension/install)/};
			my $source = slurp_file($file);
			$file =~ s{^\Q$root\E/}{};
			if ($file =~ /\.sql$/)
			{
				$source =~ s/--[^\n]*//g;
				check_text($file, $_) foreach grep { /tessera\./ } split /\n/, $source;
				check_hint($file, $1) while $source =~ /\bHINT\s*=\s*'((?:''|[^'])*)'/g;
				return;
			}
			check_text($file, $_) foreach texts($source);
			check_hint($file, join('', texts($1))) while $source =~ /\berrhint(?:_plural|_internal)?(\((?:[^()"]|"(?:\\.|[^"\\])*"|\([^()]*\))*\))/g;
		}
	},
	"$root/src", "$root/bgworkers", "$root/extension/install");

cmp_ok($ntexts, '>', 500, "$ntexts names");
cmp_ok($nhints, '>', 150, "$nhints hints");
is(join("\n", sort keys %wrong), '', 'each name exists');

# The check sees what it is for.
%wrong = ();
check_text('made up', 'Use tessera.move_everything().');
check_hint('made up', 'Look at all_operations().');
is(scalar(keys %wrong), 2, 'names that do not exist are found');

done_testing();
