package Chaos::Workload::Shop;

# A placed schema: orders with numbers from a sequence, each with its lines, which a foreign key holds to it, and a stock that each order takes one
# from. The schema moves between the shards, as the operator, the balancer and removals want it.
#
#   shop: lost            an acknowledged order is there, at the end and whenever it is read after its acknowledgement
#   shop: doubled         no order is there twice
#   shop: unacknowledged  an order whose statement failed is not there
#   shop: half            of an order all is there, or nothing: its row, its lines, and what it took from the stock
#   shop: number          a number is given once, and the next one is above all that were given

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Workload';

my $ARTICLES = 5;
my $LINES = 2;

sub name
{
	return 'shop';
}

# None that has ranges.
sub tables
{
	return {};
}

sub setup
{
	return (
		'CREATE SCHEMA shop',
		'CREATE TABLE shop.orders (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id bigint NOT NULL, article int NOT NULL)',
		'CREATE INDEX ON shop.orders (id)',
		'CREATE TABLE shop.line (number bigint NOT NULL REFERENCES shop.orders, line int NOT NULL, PRIMARY KEY (number, line))',
		'CREATE TABLE shop.stock (article int PRIMARY KEY, taken bigint NOT NULL)',
		"INSERT INTO shop.stock SELECT g, 0 FROM generate_series(1, $ARTICLES) g");
}

sub step
{
	my ($self, $connection, $random, $next_id) = @_;
	my $mine = $self->{acknowledged} //= [];
	if (@$mine && $random->chance(0.3))
	{
		my $id = $random->pick(@$mine);
		my $answer = $connection->run("SELECT count(DISTINCT number), count(*) FROM shop.orders JOIN shop.line USING (number) WHERE id = $id");
		return { kind => 'read', id => $id, rows => $answer->{rows}, Chaos::Workload::outcome($answer) };
	}
	my $id = $next_id->();
	my $article = 1 + $random->below($ARTICLES);
	my $answer = $connection->run("WITH o AS (INSERT INTO shop.orders (id, article) VALUES ($id, $article) RETURNING number), " .
		"s AS (UPDATE shop.stock SET taken = taken + 1 WHERE article = $article) " .
		"INSERT INTO shop.line SELECT number, g FROM o, generate_series(1, $LINES) g RETURNING number");
	push @$mine, $id if $answer->{outcome} eq 'ok';
	return { kind => 'order', id => $id, article => $article, rows => $answer->{rows}, Chaos::Workload::outcome($answer) };
}

sub final
{
	return {
		orders => 'SELECT number, id, article FROM shop.orders',
		line => 'SELECT number, count(*) FROM shop.line GROUP BY number',
		stock => 'SELECT article, taken FROM shop.stock',
		last => 'SELECT last_value FROM shop.orders_number_seq' };
}

sub check
{
	my ($self, $records, $final) = @_;
	my (%given, @lost, @doubled, @number);
	foreach my $record (grep { $_->{outcome} eq 'ok' } @$records)
	{
		my ($first, @others) = @{ $record->{rows} };
		if ($record->{kind} eq 'read')
		{
			push @lost, "on $record->{node}: order $record->{id} was seen with $first->[1] lines" if $first->[1] < $LINES;
			push @doubled, "on $record->{node}: order $record->{id} was seen with $first->[1] lines" if $first->[1] > $LINES;
			next;
		}
		push @number, "number $first->[0] was given to $given{ $first->[0] } and $record->{id}" if $given{ $first->[0] };
		$given{ $first->[0] } = $record->{id};
	}
	return (
		Chaos::Workload::findings('shop: lost', @lost),
		Chaos::Workload::findings('shop: doubled', @doubled),
		Chaos::Workload::findings('shop: number', @number),
		map { (_check_orders($_, $records, $final->{$_}), _check_parts($_, \%given, $final->{$_})) } sort keys %$final);
}

sub _check_orders
{
	my ($node, $records, $final) = @_;
	my (%count, @lost, @doubled, @unacknowledged);
	$count{ $_->[1] }++ foreach @{ $final->{orders} };
	foreach my $record (grep { $_->{kind} eq 'order' } @$records)
	{
		my $n = $count{ $record->{id} } // 0;
		push @lost, "on $node: order $record->{id}" if $n == 0 && $record->{outcome} eq 'ok';
		push @unacknowledged, "on $node: order $record->{id} ($record->{state})" if $n > 0 && $record->{outcome} eq 'failed';
	}
	push @doubled, map { "on $node: order $_ is there $count{$_} times" } grep { $count{$_} > 1 } sort keys %count;
	return (
		Chaos::Workload::findings('shop: lost', @lost),
		Chaos::Workload::findings('shop: doubled', @doubled),
		Chaos::Workload::findings('shop: unacknowledged', @unacknowledged));
}

sub _check_parts
{
	my ($node, $given, $final) = @_;
	my %lines = map { @$_ } @{ $final->{line} };
	my (%taken, @half, @number);
	my $highest = 0;
	foreach my $order (@{ $final->{orders} })
	{
		my ($number, $id, $article) = @$order;
		my $lines = delete $lines{$number} // 0;
		push @half, "on $node: order $id has $lines lines" if $lines != $LINES;
		$taken{$article}++;
	}
	push @half, map { "on $node: lines without an order, number $_" } sort keys %lines;
	foreach my $stock (@{ $final->{stock} })
	{
		my $taken = $taken{ $stock->[0] } // 0;
		push @half, "on $node: $stock->[1] were taken of article $stock->[0], and $taken orders have it" if $stock->[1] != $taken;
	}
	foreach my $number (keys %$given, map { $_->[0] } @{ $final->{orders} })
	{
		$highest = $number if $number > $highest;
	}
	push @number, "on $node: the sequence is at $final->{last}[0][0], and $highest was given" if $final->{last}[0][0] < $highest;
	return (Chaos::Workload::findings('shop: half', @half), Chaos::Workload::findings('shop: number', @number));
}

1;
