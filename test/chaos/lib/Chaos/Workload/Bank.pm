package Chaos::Workload::Bank;

# Transfers between accounts, most of them over two shards; each writes two entries beside the accounts, in a table of the same group. Some
# transactions are at REPEATABLE READ: transfers that write what they have read and added to (a lost update would part an account from its entries),
# and readers that look twice.
#
#   bank: total               the sum of all balances is what it was
#   bank: balance             an account's balance is the sum of its entries: in every read of one account (one statement on one shard, or several at
#                             REPEATABLE READ), and at the end
#   bank: transfer            an acknowledged transfer has both of its entries, a failed one none, an unknown one both or none
#   bank: scan                a scan of all accounts sees each of them once, at any time
#   bank: row                 a statement finds the one account that it names
#   bank: repeat              a transaction at REPEATABLE READ sees the same when it looks again: an account, and all of them
#   bank: moment              a scan's sum is what it was, also in the middle of transfers: it sees each of them whole or not at all

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Workload';

use Chaos::Connection;

sub defaults
{
	return (accounts => 300, filler => 200);
}

sub name
{
	return 'bank';
}

sub tables
{
	my ($self) = @_;
	return { acc => { kind => 'int', min => 1, max => $self->{accounts} + 1 } };
}

sub setup
{
	my ($self) = @_;
	return (
		'CREATE TABLE acc (k int PRIMARY KEY, bal bigint NOT NULL, filler text)',
		'CREATE TABLE entry (k int NOT NULL, id bigint NOT NULL, delta bigint NOT NULL, PRIMARY KEY (k, id))',
		"INSERT INTO acc SELECT g, 0, repeat('x', g % $self->{filler}) FROM generate_series(1, $self->{accounts}) g",
		"SELECT tessera.shard_table('acc', 'k')",
		"SELECT tessera.shard_table('entry', 'k', colocate_with => 'acc')");
}

sub step
{
	my ($self, $connection, $random, $next_id) = @_;
	my $what = $random->weighted(transfer => 50, rewrite => 10, account => 20, repeat => 5, scan => 15);
	return $self->_transfer($connection, $random, $next_id->()) if $what eq 'transfer';
	return $self->_rewrite($connection, $random, $next_id->()) if $what eq 'rewrite';
	return $self->_repeat($connection, $random, 1 + $random->below($self->{accounts})) if $what eq 'repeat';
	return $self->_account($connection, 1 + $random->below($self->{accounts})) if $what eq 'account';
	return $self->_scan($connection);
}

sub _transfer
{
	my ($self, $connection, $random, $id) = @_;
	my ($from, $to) = $random->sample(2, 1 .. $self->{accounts});
	my $amount = 1 + $random->below(100);
	my @missing;
	my $answer = $connection->transaction(
		sub {
			my ($query) = @_;
			foreach my $part ([ $from, -$amount ], [ $to, $amount ])
			{
				my ($k, $delta) = @$part;
				push @missing, "UPDATE of account $k"
					if Chaos::Connection::count($query->("UPDATE acc SET bal = bal + ($delta) WHERE k = $k")) != 1;
				$query->("INSERT INTO entry VALUES ($k, $id, $delta)");
			}
		});
	return { kind => 'transfer', id => $id, missing => \@missing, Chaos::Workload::outcome($answer) };
}

# A transfer at REPEATABLE READ that sets what it has read and computed: who wrote meanwhile makes it fail.
sub _rewrite
{
	my ($self, $connection, $random, $id) = @_;
	my ($from, $to) = $random->sample(2, 1 .. $self->{accounts});
	my $amount = 1 + $random->below(100);
	my @missing;
	my $answer = $connection->transaction(
		sub {
			my ($query) = @_;
			foreach my $part ([ $from, -$amount ], [ $to, $amount ])
			{
				my ($k, $delta) = @$part;
				my $found = $query->("SELECT bal FROM acc WHERE k = $k")->{rows}[0];
				push @missing, "SELECT of account $k" unless $found;
				next unless $found;
				push @missing, "UPDATE of account $k"
					if Chaos::Connection::count($query->('UPDATE acc SET bal = ' . ($found->[0] + $delta) . " WHERE k = $k")) != 1;
				$query->("INSERT INTO entry VALUES ($k, $id, $delta)");
			}
		},
		'REPEATABLE READ');
	return { kind => 'rewrite', id => $id, missing => \@missing, Chaos::Workload::outcome($answer) };
}

# An account, its entries and all accounts, then again the account and all of them.
sub _repeat
{
	my ($self, $connection, $random, $k) = @_;
	my @seen;
	my $answer = $connection->transaction(
		sub {
			my ($query) = @_;
			my $look = sub { join(' ', map { $_->[0] } @{ $query->("SELECT bal FROM acc WHERE k = $k")->{rows} }) };
			my $scan = sub { join(' ', @{ $query->('SELECT count(*), count(DISTINCT k), sum(bal), sum(bal * k) FROM acc')->{rows}[0] }) };
			@seen = ($look->(), $query->("SELECT coalesce(sum(delta), 0) FROM entry WHERE k = $k")->{rows}[0][0]);
			push @seen, $scan->(), $look->(), $scan->();
		},
		'REPEATABLE READ');
	return { kind => 'repeat', k => $k, seen => \@seen, Chaos::Workload::outcome($answer) };
}

sub _account
{
	my ($self, $connection, $k) = @_;
	my $answer = $connection->run("SELECT a.bal, (SELECT coalesce(sum(e.delta), 0) FROM entry e WHERE e.k = a.k) FROM acc a WHERE a.k = $k");
	return { kind => 'account', k => $k, rows => $answer->{rows}, Chaos::Workload::outcome($answer) };
}

sub _scan
{
	my ($self, $connection) = @_;
	my $answer = $connection->run('SELECT count(*), count(DISTINCT k), sum(bal) FROM acc');
	return { kind => 'scan', rows => $answer->{rows}, Chaos::Workload::outcome($answer) };
}

sub final
{
	return { acc => 'SELECT k, bal FROM acc', entry => 'SELECT k, id, delta FROM entry' };
}

sub check
{
	my ($self, $records, $final) = @_;
	return ($self->_check_reads($records), map { $self->_check_node($_, $records, $final->{$_}) } sort keys %$final);
}

sub _check_reads
{
	my ($self, $records) = @_;
	my (@row, @balance, @scan, @repeat, @moment);
	foreach my $record (@$records)
	{
		push @row, "on $record->{node}: $record->{kind} $record->{id} ($record->{outcome}, $record->{begun} to $record->{ended}): $_ found nothing"
			foreach @{ $record->{missing} // [] };
		if ($record->{kind} eq 'repeat' && $record->{outcome} eq 'ok')
		{
			my ($account, $entries, $all, $account_again, $all_again) = @{ $record->{seen} };
			my $who = "on $record->{node}: account $record->{k}";
			push @row, "$who was seen as '$account'" unless $account =~ /^-?\d+$/;
			push @balance, "$who has $account, its entries $entries" if $account ne $entries;
			push @scan, "on $record->{node}: of $self->{accounts} accounts were seen $all" unless $all =~ /^$self->{accounts} $self->{accounts} /;
			push @moment, "on $record->{node}: the sum of all accounts was $1" if $all =~ /^\d+ \d+ (\S+)/ && $1 ne '0';
			push @repeat, "$who was $account, then $account_again" if $account ne $account_again;
			push @repeat, "on $record->{node}: all accounts were $all, then $all_again" if $all ne $all_again;
		}
		next unless $record->{outcome} eq 'ok' && $record->{rows};
		my ($first, @more) = @{ $record->{rows} };
		if ($record->{kind} eq 'scan')
		{
			push @scan, "on $record->{node}: $first->[0] rows, $first->[1] accounts of $self->{accounts}"
				if $first->[0] != $self->{accounts} || $first->[1] != $self->{accounts};
			push @moment, "on $record->{node}: the sum was $first->[2]" if $first->[2] != 0;
		}
		elsif (!$first || @more)
		{
			push @row, sprintf('on %s: account %d is there %d times', $record->{node}, $record->{k}, scalar @{ $record->{rows} });
		}
		elsif ($first->[0] != $first->[1])
		{
			push @balance, "on $record->{node}: account $record->{k} has $first->[0], its entries $first->[1]";
		}
	}
	return (
		Chaos::Workload::findings('bank: row', @row),
		Chaos::Workload::findings('bank: balance', @balance),
		Chaos::Workload::findings('bank: scan', @scan),
		Chaos::Workload::findings('bank: repeat', @repeat),
		Chaos::Workload::findings('bank: moment', @moment));
}

sub _check_node
{
	my ($self, $node, $records, $final) = @_;
	my ($total, %balance, %sum, %entries, @balance, @transfer) = (0);
	foreach my $row (@{ $final->{acc} })
	{
		$total += $row->[1];
		$balance{ $row->[0] } = $row->[1];
	}
	foreach my $row (@{ $final->{entry} })
	{
		$sum{ $row->[0] } += $row->[2];
		$entries{ $row->[1] }++;
	}
	my $accounts = @{ $final->{acc} };
	my @scan = $accounts == $self->{accounts} && keys %balance == $self->{accounts} ? () :
		("on $node: $accounts rows of " . keys(%balance) . " accounts, of $self->{accounts}");
	foreach my $k (sort { $a <=> $b } keys %balance)
	{
		my $sum = $sum{$k} // 0;
		push @balance, "on $node: account $k has $balance{$k}, its entries $sum" if $balance{$k} != $sum;
	}
	foreach my $record (grep { defined $_->{id} } @$records)
	{
		my $n = $entries{ $record->{id} } // 0;
		my $right = $record->{outcome} eq 'ok' ? $n == 2 : $record->{outcome} eq 'failed' ? $n == 0 : $n == 0 || $n == 2;
		push @transfer, "on $node: transfer $record->{id} ($record->{outcome}) has $n entries" unless $right;
	}
	return (
		Chaos::Workload::findings('bank: scan', @scan),
		Chaos::Workload::findings('bank: total', $total == 0 ? () : "on $node: the sum is $total"),
		Chaos::Workload::findings('bank: balance', @balance),
		Chaos::Workload::findings('bank: transfer', @transfer));
}

1;
