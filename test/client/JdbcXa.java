// JDBC with XA through a node, run from its source (java -cp postgresql.jar JdbcXa.java STEP HOST PORT USER). STEP prepare: ordinary statements, then four branches are prepared and
// the program ends without finishing them; STEP finish, on another node: recover finds them, two are committed and two rolled back. Prints a line "ok ..." for each check.
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Arrays;
import java.util.Set;
import java.util.TreeSet;
import javax.sql.XAConnection;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.postgresql.xa.PGXADataSource;

public class JdbcXa {
	static final class Branch implements Xid {
		final int number;
		Branch(int number) { this.number = number; }
		public int getFormatId() { return 77; }
		public byte[] getGlobalTransactionId() { return ("transaction " + number).getBytes(); }
		public byte[] getBranchQualifier() { return new byte[] { 0, (byte) number, (byte) 255 }; }
	}

	static void check(boolean condition, String what) {
		System.out.println((condition ? "ok - " : "not ok - ") + what);
		if (!condition)
			System.exit(1);
	}

	static int count(Connection connection, String where) throws SQLException {
		try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery("SELECT count(*) FROM people_x WHERE " + where)) {
			rows.next();
			return rows.getInt(1);
		}
	}

	static void insert(Connection connection, int first, int n) throws SQLException {
		try (PreparedStatement statement = connection.prepareStatement("INSERT INTO people_x (id, name) VALUES (?, ?)")) {
			for (int i = first; i < first + n; i++) {
				statement.setInt(1, i);
				statement.setString(2, "name " + i);
				statement.addBatch();
			}
			statement.executeBatch();
		}
	}

	// The numbers of our branches that the node knows as prepared.
	static Set<Integer> recovered(XAResource resource) throws XAException {
		Set<Integer> numbers = new TreeSet<>();
		for (Xid xid : resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN))
			if (xid.getFormatId() == 77)
				numbers.add(Integer.parseInt(new String(xid.getGlobalTransactionId()).substring("transaction ".length())));
		return numbers;
	}

	static void prepareBranches(XAConnection xa) throws Exception {
		Connection connection = xa.getConnection();
		XAResource resource = xa.getXAResource();
		insert(connection, 1, 30);
		for (int i = 0; i < 12; i++)	// prepared on the server from the fifth on
			check(count(connection, "id <= " + (i + 1)) == i + 1, "a statement for the " + i + "th time");
		Branch whole = new Branch(9);
		resource.start(whole, XAResource.TMNOFLAGS);
		insert(connection, 900, 10);
		resource.end(whole, XAResource.TMSUCCESS);
		check(resource.prepare(whole) == XAResource.XA_OK, "prepare");
		resource.commit(whole, false);
		check(count(connection, "id >= 900") == 10, "commit in two phases");
		Branch onePhase = new Branch(8);
		resource.start(onePhase, XAResource.TMNOFLAGS);
		insert(connection, 800, 10);
		resource.end(onePhase, XAResource.TMSUCCESS);
		resource.commit(onePhase, true);
		check(count(connection, "id BETWEEN 800 AND 899") == 10, "commit in one phase");
		for (int number = 1; number <= 4; number++) {
			Branch branch = new Branch(number);
			resource.start(branch, XAResource.TMNOFLAGS);
			insert(connection, number * 100, 20);
			resource.end(branch, XAResource.TMSUCCESS);
			check(resource.prepare(branch) == XAResource.XA_OK, "branch " + number + " is prepared");
		}
		check(recovered(resource).equals(new TreeSet<>(Arrays.asList(1, 2, 3, 4))), "recover finds them");
		check(count(connection, "id BETWEEN 100 AND 499") == 0, "nothing of them is seen");
	}

	static void finishBranches(XAConnection xa) throws Exception {
		Connection connection = xa.getConnection();
		XAResource resource = xa.getXAResource();
		check(recovered(resource).equals(new TreeSet<>(Arrays.asList(1, 2, 3, 4))), "recover on another node, after the crash of the first, finds them");
		resource.commit(new Branch(1), false);
		resource.rollback(new Branch(2));
		resource.commit(new Branch(3), false);
		resource.rollback(new Branch(4));
		check(count(connection, "id BETWEEN 100 AND 499") == 40, "two are committed, two rolled back");
		check(recovered(resource).isEmpty(), "none is left");
		try {
			resource.commit(new Branch(2), false);
			check(false, "what is over cannot be committed");
		} catch (XAException e) {
			check(e.errorCode == XAException.XAER_NOTA || e.errorCode == XAException.XAER_RMERR, "what is over cannot be committed");
		}
	}

	public static void main(String[] args) throws Exception {
		PGXADataSource source = new PGXADataSource();
		source.setUrl("jdbc:postgresql://" + args[1] + ":" + args[2] + "/postgres");
		source.setUser(args[3]);
		XAConnection xa = source.getXAConnection();
		if (args[0].equals("prepare"))
			prepareBranches(xa);
		else
			finishBranches(xa);
	}
}
