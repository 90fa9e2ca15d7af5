#!/usr/bin/perl
# generate.pl what calls.def [SQL parts...] : prints what the build needs of the table of calls between nodes.
#   header   control/calls.h      types of arguments and answers, prototypes
#   source   control/calls.c      the table, the functions that callers use, and those that take a call to the C function that answers it
#   sql      the extension's script: its parts, with "@calls@" replaced by the functions served by C, "@call NAME@" by the head of one served by SQL,
#            "@grants@" by who may execute them
# calls.def says what a line of it means. Only perl-base is needed.
use strict;
use warnings;

my ($what, $file, @parts) = @ARGV;
die "usage: generate.pl header|source|sql calls.def [SQL parts...]\n" unless defined $file;

# type => [SQL type, C type, how a C value becomes text, how text becomes a C value]; undef: text as it is
my %types = (
	uuid => [ 'pg_catalog.uuid', 'const pg_uuid_t *', 'tessera_call_from_uuid', 'tessera_call_to_uuid' ],
	int4 => [ 'pg_catalog.int4', 'int32', 'tessera_call_from_int4', 'tessera_call_to_int4' ],
	int8 => [ 'pg_catalog.int8', 'int64', 'tessera_call_from_int8', 'tessera_call_to_int8' ],
	float8 => [ 'pg_catalog.float8', 'double', 'tessera_call_from_float8', 'tessera_call_to_float8' ],
	bool => [ 'pg_catalog.bool', 'bool', 'tessera_call_from_bool', 'tessera_call_to_bool' ],
	pg_lsn => [ 'pg_catalog.pg_lsn', 'XLogRecPtr', 'tessera_call_from_lsn', 'tessera_call_to_lsn' ],
	bound => ['tessera.bound'],
	'bound[]' => ['tessera.bound[]'],
	'advisory_home[]' => ['tessera.advisory_home[]'],
	map { ($_ => ["pg_catalog.$_"]) } qw(text name jsonb regclass timestamptz text[] int4[] int8[] float8[] uuid[] name[]));
my %pointer = (uuid => 1);    # C types that have a NULL

# The answering side: type => [C type, how an argument is read, how a result is written]; a pointer has a NULL
my $array = [ 'ArrayType *', 'PG_GETARG_ARRAYTYPE_P(%d)', 'PointerGetDatum(%s)' ];
my %served = (
	uuid => [ 'pg_uuid_t *', 'PG_GETARG_UUID_P(%d)', 'UUIDPGetDatum(%s)' ],
	int4 => [ 'int32', 'PG_GETARG_INT32(%d)', 'Int32GetDatum(%s)' ],
	int8 => [ 'int64', 'PG_GETARG_INT64(%d)', 'Int64GetDatum(%s)' ],
	float8 => [ 'double', 'PG_GETARG_FLOAT8(%d)', 'Float8GetDatum(%s)' ],
	bool => [ 'bool', 'PG_GETARG_BOOL(%d)', 'BoolGetDatum(%s)' ],
	pg_lsn => [ 'XLogRecPtr', 'PG_GETARG_LSN(%d)', 'LSNGetDatum(%s)' ],
	regclass => [ 'Oid', 'PG_GETARG_OID(%d)', 'ObjectIdGetDatum(%s)' ],
	text => [ 'const char *', 'text_to_cstring(PG_GETARG_TEXT_PP(%d))', 'CStringGetTextDatum(%s)' ],
	jsonb => [ 'Jsonb *', 'PG_GETARG_JSONB_P(%d)', 'JsonbPGetDatum(%s)' ],
	bound => [ 'TesseraBound *', 'PG_GETARG_TESSERA_BOUND_P(%d)', 'PointerGetDatum(%s)' ],
	map { ($_ => $array) } grep { /\[\]$/ } keys %types);

sub read_calls
{
	my ($path) = @_;
	my (@calls, $call);
	open(my $in, '<', $path) or die "$path: $!\n";
	while (my $line = <$in>)
	{
		chomp $line;
		$line =~ s/^#.*//;
		next unless $line =~ /\S/;
		my $where = "$path:$.";
		my ($word, $rest) = $line =~ /^\s*(\w+)\s*(.*?)\s*$/ or die "$where: what is this?\n";
		if ($word eq 'call')
		{
			$call = { name => $rest, where => $where, args => [], results => [], to => 'any', lane => 'control', deadline => 'usual', repeat => 'no', caller => 'node', hello => '',
				rows => 'one', since => 1, served => 'c', options => [] };
			push @calls, $call;
		}
		elsif ($word eq 'arg' || $word eq 'result')
		{
			my ($name, $type, $more) = $rest =~ /^(\w+)\s+(\S+)\s*(.*)$/ or die "$where: $word NAME TYPE\n";
			die "$where: unknown type $type\n" unless $types{$type};
			my $since = $more =~ s/\s*since (\d+)// ? $1 : 1;
			my $null = $more =~ s/\bnull\b// ? 1 : 0;
			my $secret = $more =~ s/\bsecret\b// ? 1 : 0;
			die "$where: $more?\n" if $more =~ /\S/;
			push @{ $call->{"${word}s"} }, { name => $name, type => $type, null => $null, secret => $secret, since => $since };
		}
		elsif ($word eq 'option') { push @{ $call->{options} }, $rest }
		elsif (exists $call->{$word} || $word eq 'says') { $call->{$word} = $rest }
		else { die "$where: unknown word $word\n" }
	}
	close $in;
	foreach my $c (@calls)
	{
		die "$c->{where}: $c->{name} says nothing\n" unless $c->{says};
		die "$c->{where}: lane $c->{lane}\n" unless $c->{lane} =~ /^(control|transaction|queue)$/;
		die "$c->{where}: deadline $c->{deadline}\n" unless $c->{deadline} =~ /^(\d+|none|usual)$/;
		die "$c->{where}: to $c->{to}\n" unless $c->{to} =~ /^(config|any)$/;
		$c->{hello} ||= $c->{caller} eq 'user' ? 'said' : 'any';
		die "$c->{where}: hello $c->{hello}\n" unless $c->{hello} =~ /^(said|first|any)$/;
		die "$c->{where}: a C function answers with one row\n" if $c->{served} eq 'c' && $c->{rows} eq 'many';
		die "$c->{where}: served $c->{served}\n" unless $c->{served} =~ /^(c|sql)$/;
		my $highest = 1;
		foreach my $field (@{ $c->{args} })
		{
			die "$c->{where}: an argument that an older protocol has follows a newer one\n" if $field->{since} < $highest;
			$highest = $field->{since};
		}
	}
	return @calls;
}

sub c_type { my ($field) = @_; return $types{ $field->{type} }[1] // 'const char *' }

# Answers are the caller's own.
sub answer_type { my ($field) = @_; my $type = c_type($field); $type =~ s/^const //; return $type }
sub declared { my ($type, $name) = @_; return $type =~ /\*$/ ? "$type$name" : "$type $name" }
sub camel { return join '', map { ucfirst } split /_/, $_[0] }
sub quoted { my ($text) = @_; $text =~ s/(["\\])/\\$1/g; return "\"$text\"" }

# An SQL name of an argument: these are no names without quotes.
sub sql_name { my ($name) = @_; return $name =~ /^(position|table|class|try)$/ ? "\"$name\"" : $name }

sub answer_struct { my ($c) = @_; return @{ $c->{results} } > 1 || $c->{rows} eq 'many' ? 'Tessera' . camel($c->{name}) . 'Answer' : undef }

sub stub_head
{
	my ($c) = @_;
	my @args = map {
		my $by_value = ($types{ $_->{type} }[1] // '') && !$pointer{ $_->{type} };
		$_->{null} && $by_value ? declared('const ' . c_type($_) . ' *', $_->{name}) : declared(c_type($_), $_->{name})
	} @{ $c->{args} };
	return 'void tessera_queue_' . $c->{name} . '(' . join(', ', 'TesseraConnection *connection', @args) . ')' if $c->{lane} eq 'queue';
	my $struct = answer_struct($c);
	push @args, "$struct **rows", 'int *nrows' if $c->{rows} eq 'many';
	push @args, "$struct *answer" if $struct && $c->{rows} ne 'many';
	if (!$struct && @{ $c->{results} })
	{
		my $type = answer_type($c->{results}[0]);
		push @args, $type =~ /\*$/ ? "$type*" . $c->{results}[0]{name} : "$type *" . $c->{results}[0]{name};
	}
	return 'bool tessera_call_' . $c->{name} . '(' . join(', ', 'TesseraCallTarget target', @args) . ')';
}

# The answering side.
sub served_type { my ($field) = @_; return ($served{ $field->{type} } // die "no C type of $field->{type} for who answers\n")->[0] }
sub by_value { my ($field) = @_; return served_type($field) !~ /\*$/ }
sub args_struct { my ($c) = @_; return @{ $c->{args} } ? 'Tessera' . camel($c->{name}) . 'Args' : undef }
sub result_struct { my ($c) = @_; return @{ $c->{results} } > 1 ? 'Tessera' . camel($c->{name}) . 'Result' : undef }
sub may_be_null { my ($field) = @_; return $field->{null} || $field->{since} > 1 }

sub serve_head
{
	my ($c) = @_;
	my @given = args_struct($c) ? ('const ' . args_struct($c) . ' *args') : ();
	push @given, result_struct($c) . ' *result' if result_struct($c);
	my $type = result_struct($c) || !@{ $c->{results} } ? 'void' : served_type($c->{results}[0]);
	return declared($type, "tessera_serve_$c->{name}(" . (join(', ', @given) || 'void') . ')');
}

# A field of a type without NULL that may be null has a second one that says so.
sub served_struct
{
	my ($name, $fields) = @_;
	my $text = "typedef struct $name\n{\n";
	foreach my $field (@$fields)
	{
		$text .= "\t" . declared(served_type($field), $field->{name}) . ";\n";
		$text .= "\tbool $field->{name}_null;\n" if may_be_null($field) && by_value($field);
	}
	return $text . "} $name;\n";
}

sub serve_prototype
{
	my ($c) = @_;
	return '' unless $c->{served} eq 'c';
	return (args_struct($c) ? served_struct(args_struct($c), $c->{args}) : '') . (result_struct($c) ? served_struct(result_struct($c), $c->{results}) : '') .
	  'extern ' . serve_head($c) . ";\n";
}

sub take_args
{
	my ($c) = @_;
	my $strict = sql_strict($c);
	my $text = '';
	my $i = 0;
	foreach my $field (@{ $c->{args} })
	{
		my $value = sprintf $served{ $field->{type} }[1], $i;
		if (!may_be_null($field))
		{
			$text .= "\ttessera_call_require_argument(fcinfo, $i, " . quoted($field->{name}) . ");\n" unless $strict;
			$text .= "\targs.$field->{name} = $value;\n";
		}
		else
		{
			# the library may be newer than the SQL function
			my $given = ($field->{since} > 1 ? "PG_NARGS() > $i && " : '') . "!PG_ARGISNULL($i)";
			$text .= "\targs.$field->{name}_null = !($given);\n" if by_value($field);
			$text .= "\tif ($given)\n\t\targs.$field->{name} = $value;\n";
		}
		$i++;
	}
	return $text;
}

sub give_results
{
	my ($c) = @_;
	my @fields = @{ $c->{results} };
	my $given = args_struct($c) ? '&args' : '';
	my $call = "tessera_serve_$c->{name}";
	return "\t$call($given);\n\tPG_RETURN_VOID();\n" unless @fields;
	if (!result_struct($c))
	{
		my $text = "\tresult = $call($given);\n";
		$text .= "\tif (result == NULL)\n\t\tPG_RETURN_NULL();\n" unless by_value($fields[0]);
		return $text . "\treturn " . sprintf($served{ $fields[0]{type} }[2], 'result') . ";\n";
	}
	my $text = "\t$call(" . join(', ', $given || (), '&result') . ");\n";
	my $i = 0;
	foreach my $field (@fields)
	{
		my $name = "result.$field->{name}";
		my $null = !by_value($field) ? "$name == NULL" : may_be_null($field) ? "${name}_null" : 'false';
		$text .= "\tnulls[$i] = $null;\n" . ($null eq 'false' ? "\t" : "\tif (!nulls[$i])\n\t\t") . "values[$i] = " .
		  sprintf($served{ $field->{type} }[2], $name) . ";\n";
		$i++;
	}
	return $text . "\treturn tessera_call_row(fcinfo, values, nulls);\n";
}

# What SQL calls: reads the arguments, calls who answers, returns its result.
sub serve_text
{
	my ($c) = @_;
	return '' unless $c->{served} eq 'c';
	my $n = @{ $c->{results} };
	my ($secret) = grep { $c->{args}[$_]{secret} } 0 .. $#{ $c->{args} };
	my $declared = "\nPG_FUNCTION_INFO_V1(tessera_take_$c->{name});\n";
	my $head = "\nDatum\ntessera_take_$c->{name}(PG_FUNCTION_ARGS)\n{\n";
	my $text = defined $secret ? "\nstatic Datum\nserve_$c->{name}(PG_FUNCTION_ARGS)\n{\n" : $declared . $head;
	$text .= "\t" . args_struct($c) . " args = {0};\n" if args_struct($c);
	$text .= "\t" . result_struct($c) . " result = {0};\n\tDatum\t\tvalues[$n];\n\tbool\t\tnulls[$n];\n" if result_struct($c);
	$text .= "\t" . declared(served_type($c->{results}[0]), 'result') . ";\n" if $n == 1;
	$text .= "\n";
	$text .= "\ttessera_call_admit(fcinfo, " . ($c->{hello} eq 'said' ? 'true' : 'false') . ");\n" if $c->{hello} ne 'any';
	$text .= take_args($c) . give_results($c) . "}\n";
	$text .= "$declared${head}\treturn tessera_without_secrets(fcinfo, $secret, serve_$c->{name});\n}\n" if defined $secret;
	return $text;
}

sub struct_text
{
	my ($c) = @_;
	my $struct = answer_struct($c) or return '';
	my $text = "typedef struct $struct\n{\n";
	foreach my $field (@{ $c->{results} })
	{
		$text .= "\t" . declared(answer_type($field), $field->{name}) . ";\n";
		$text .= "\tbool $field->{name}_null;\n" if $field->{null} && c_type($field) !~ /\*$/;
	}
	return $text . "} $struct;\n";
}

sub print_header
{
	my @calls = @_;
	print "/* Made by control/generate.pl of control/calls.def. */\n#ifndef TESSERA_CALLS_H\n#define TESSERA_CALLS_H\n\n#include \"postgres.h\"\n";
	print "#include \"access/xlogdefs.h\"\n#include \"utils/array.h\"\n#include \"utils/jsonb.h\"\n#include \"utils/uuid.h\"\n\n";
	print "#include \"catalog/bound.h\"\n#include \"control/call.h\"\n#include \"transport/connection.h\"\n\n";
	print "typedef enum TesseraCallNumber\n{\n", (map { "\tTESSERA_CALL_" . uc($_->{name}) . ",\n" } @calls), "\tTESSERA_CALLS\n} TesseraCallNumber;\n\n";
	print "extern const TesseraCallSpec tessera_call_specs[TESSERA_CALLS];\n";
	foreach my $c (@calls)
	{
		print "\n/* To ", ($c->{to} eq 'config' ? 'the config node' : 'a node'), ": $c->{says}. */\n", struct_text($c), 'extern ', stub_head($c), ";\n", serve_prototype($c);
	}
	print "\n#endif\n";
	return;
}

sub field_table
{
	my ($name, $fields) = @_;
	return '' unless @$fields;
	return "static const TesseraCallField ${name}[] = {" . join(', ', map { "{" . quoted(sql_name($_->{name})) . ", " . quoted($types{ $_->{type} }[0]) . ", $_->{since}}" } @$fields) . "};\n";
}

sub encoded
{
	my ($field) = @_;
	my $to_text = $types{ $field->{type} }[2] or return $field->{name};
	return "$to_text($field->{name})" if $pointer{ $field->{type} };
	return "$field->{name} != NULL ? $to_text(*$field->{name}) : NULL" if $field->{null};
	return "$to_text($field->{name})";
}

sub decoded
{
	my ($field, $row, $column) = @_;
	my $value = "tessera_answer_value(&call, $row, $column)";
	my $from_text = $types{ $field->{type} }[3];
	return $from_text ? "$from_text($value)" : $value;
}

sub decode_struct
{
	my ($c, $into, $row) = @_;
	my $text = '';
	my $column = 0;
	foreach my $field (@{ $c->{results} })
	{
		$text .= "\t\t$into$field->{name} = " . decoded($field, $row, $column) . ";\n";
		$text .= "\t\t$into$field->{name}_null = tessera_answer_value(&call, $row, $column) == NULL;\n" if $field->{null} && c_type($field) !~ /\*$/;
		$column++;
	}
	return $text;
}

sub stub_text
{
	my ($c) = @_;
	my $spec = '&tessera_call_specs[TESSERA_CALL_' . uc($c->{name}) . ']';
	my $n = @{ $c->{args} };
	my ($head) = stub_head($c) =~ /^(?:bool|void) (.*)$/;
	my $values = $n ? "\tconst char *values[] = {" . join(', ', map { encoded($_) } @{ $c->{args} }) . "};\n" : '';
	my $given = $n ? 'values' : 'NULL';
	return "\nvoid\n$head\n{\n$values\n\ttessera_call_queue($spec, connection, $given);\n}\n" if $c->{lane} eq 'queue';
	my $text = "\nbool\n$head\n{\n$values\tTesseraCallAnswer call;\n\n\tif (!tessera_call($spec, target, $given, &call))\n\t\treturn false;\n";
	my $struct = answer_struct($c);
	if ($c->{rows} eq 'many')
	{
		$text .= "\t*nrows = call.nrows;\n\t*rows = palloc(sizeof($struct) * Max(call.nrows, 1));\n\tfor (int i = 0; i < call.nrows; i++)\n\t{\n" . decode_struct($c, '(*rows)[i].', 'i') . "\t}\n";
	}
	elsif ($struct)
	{
		$text .= "\tif (answer != NULL)\n\t{\n" . decode_struct($c, 'answer->', '0') . "\t}\n";
	}
	elsif (my ($field) = @{ $c->{results} })
	{
		$text .= "\tif ($field->{name} != NULL)\n\t\t*$field->{name} = " . decoded($field, '0', '0') . ";\n";
	}
	return $text . "\treturn true;\n}\n";
}

sub print_source
{
	my @calls = @_;
	my %lane = (control => 'TESSERA_LANE_CONTROL', transaction => 'TESSERA_LANE_TRANSACTION', queue => 'TESSERA_LANE_QUEUE');
	print "/* Made by control/generate.pl of control/calls.def. */\n#include \"postgres.h\"\n\n#include \"fmgr.h\"\n";
	print "#include \"utils/builtins.h\"\n#include \"utils/pg_lsn.h\"\n\n#include \"common/secrets.h\"\n#include \"control/calls.h\"\n\n";
	print field_table("$_->{name}_args", $_->{args}), field_table("$_->{name}_results", $_->{results}) foreach @calls;
	print "\nconst TesseraCallSpec tessera_call_specs[TESSERA_CALLS] = {\n";
	foreach my $c (@calls)
	{
		my $deadline = { usual => 'TESSERA_USUAL_DEADLINE', none => 0 }->{ $c->{deadline} } // $c->{deadline};
		print "\t[TESSERA_CALL_", uc($c->{name}), "] = {.name = \"$c->{name}\", .lane = $lane{$c->{lane}}, .to_config = ", ($c->{to} eq 'config' ? 'true' : 'false'),
		  ", .deadline_ms = $deadline, .repeatable = ", ($c->{repeat} eq 'yes' ? 'true' : 'false'), ", .many = ", ($c->{rows} eq 'many' ? 'true' : 'false'), ", .since = $c->{since}";
		foreach my $list ('args', 'results')
		{
			my $n = @{ $c->{$list} };
			print ", .n$list = $n", ($n ? ", .$list = $c->{name}_$list" : '');
		}
		print "},\n";
	}
	print "};\n", (map { stub_text($_) } @calls), map { serve_text($_) } @calls;
	return;
}

# "name(args) RETURNS ..." of the SQL function
sub sql_head
{
	my ($c) = @_;
	my $struct = answer_struct($c);
	my @args = map { sql_name($_->{name}) . " $types{$_->{type}}[0]" . ($_->{since} > 1 ? ' DEFAULT NULL' : '') } @{ $c->{args} };
	my @out = map { sql_name($_->{name}) . " $types{$_->{type}}[0]" } @{ $c->{results} };
	my $returns = !@out ? 'pg_catalog.void' : $c->{rows} eq 'many' ? 'TABLE (' . join(', ', @out) . ')' : $struct ? 'record' : $types{ $c->{results}[0]{type} }[0];
	push @args, map { "OUT $_" } @out if $struct && $c->{rows} ne 'many';
	return "tessera_internal.$c->{name}(" . join(', ', @args) . ")\n  RETURNS $returns";
}

sub sql_identity { my ($c) = @_; return "tessera_internal.$c->{name}(" . join(', ', map { $types{ $_->{type} }[0] } @{ $c->{args} }) . ')' }

sub sql_comment { my ($c) = @_; my $text = $c->{says}; $text =~ s/'/''/g; return "COMMENT ON FUNCTION " . sql_identity($c) . " IS 'between nodes: $text';\n" }

sub sql_strict { my ($c) = @_; return (grep { $_->{null} || $_->{since} > 1 } @{ $c->{args} }) || !@{ $c->{args} } ? '' : ' STRICT' }

sub sql_function
{
	my ($c) = @_;
	return "CREATE FUNCTION " . sql_head($c) . "\n  LANGUAGE c VOLATILE" . sql_strict($c) . " PARALLEL UNSAFE" . join('', map { " $_" } @{ $c->{options} }) . " AS 'MODULE_PATHNAME', 'tessera_take_$c->{name}';\n" . sql_comment($c) . "\n";
}

sub print_sql
{
	my @calls = @_;
	my %by_name = map { ($_->{name} => $_) } @calls;
	my %used;
	foreach my $part (@parts)
	{
		open(my $in, '<', $part) or die "$part: $!\n";
		while (my $line = <$in>)
		{
			if ($line =~ /^\@calls\@$/) { print map { sql_function($_) } grep { $_->{served} eq 'c' } @calls; next }
			if ($line =~ /^\@grants\@$/) { print map { "GRANT EXECUTE ON FUNCTION " . sql_identity($_) . " TO PUBLIC;\n" } grep { $_->{caller} eq 'user' } @calls; next }
			if ($line =~ /^\@call (\w+)\@$/)
			{
				my $c = $by_name{$1} or die "$part:$.: no call $1 in $file\n";
				die "$part:$.: $1 is not served by SQL\n" unless $c->{served} eq 'sql';
				$used{$1} = 1;
				print 'CREATE FUNCTION ', sql_head($c), "\n";
				next;
			}
			if ($line =~ /^\@comment (\w+)\@$/) { print sql_comment($by_name{$1} // die "$part:$.: no call $1\n"); next }
			print $line;
		}
		close $in;
	}
	foreach my $c (@calls) { die "$c->{where}: no body of $c->{name} in extension/install\n" if $c->{served} eq 'sql' && !$used{ $c->{name} } }
	return;
}

my @calls = read_calls($file);
$what eq 'header' ? print_header(@calls) : $what eq 'source' ? print_source(@calls) : $what eq 'sql' ? print_sql(@calls) : die "what is $what?\n";
