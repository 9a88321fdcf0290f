-- A database as schema version 1 left it: one waiting job, its journal and its token.
PRAGMA journal_mode=WAL;
BEGIN TRANSACTION;
CREATE TABLE events (
	job_id VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	time VARCHAR NOT NULL, 
	type VARCHAR NOT NULL, 
	data JSON NOT NULL, 
	PRIMARY KEY (job_id, seq), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "events" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',1,'2030-01-01T00:00:00.000000+00:00','submitted','{"again": false}');
CREATE TABLE jobs (
	id VARCHAR NOT NULL, 
	ticket INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	user VARCHAR NOT NULL, 
	payload JSON NOT NULL, 
	priority INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	stage VARCHAR NOT NULL, 
	progress JSON, 
	attempt INTEGER NOT NULL, 
	max_attempts INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	memory_deaths INTEGER NOT NULL, 
	death_mark JSON, 
	lease_owner VARCHAR, 
	lease_until DOUBLE, 
	not_before DOUBLE, 
	boot VARCHAR, 
	fence INTEGER NOT NULL, 
	created VARCHAR NOT NULL, 
	updated VARCHAR NOT NULL, 
	started VARCHAR, 
	finished VARCHAR, 
	error JSON, 
	result JSON, 
	PRIMARY KEY (id), 
	UNIQUE (ticket)
);
INSERT INTO "jobs" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',1,'merge','ann','{"name": "old"}',0,'queued','',NULL,0,5,0,0,NULL,NULL,NULL,NULL,NULL,0,'2030-01-01T00:00:00.000000+00:00','2030-01-01T00:00:00.000000+00:00',NULL,NULL,NULL,NULL);
CREATE TABLE tokens (
	job_id VARCHAR NOT NULL, 
	ciphertext VARCHAR NOT NULL, 
	expires_at VARCHAR, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "tokens" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','old token',NULL);
CREATE INDEX jobs_queue ON jobs (state, priority, ticket);
CREATE INDEX jobs_of_user ON jobs (user, state, ticket);
COMMIT;
PRAGMA user_version = 1;
