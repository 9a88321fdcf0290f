"""What agents changed, where they meet and what a merge kept, as counts and sums that add up exactly."""
